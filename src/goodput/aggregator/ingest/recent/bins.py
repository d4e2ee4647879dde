"""fp16 bins of many durations at once, the same as histograms.histogram.bin_of_ns has for each, and how often each occurs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Below the least normal number fp16 counts in steps of 2**-24. Converting to such a one raises the processor's underflow
# flag, which takes 65 ns; rounding to whole steps gives the same bin in 6.
_NORMAL_SECONDS, _STEPS_PER_SECOND = 2.0**-14, 2.0**24
BIN_BITS = 16  # of a bin in a key, below its place


def fp16_bins(nanoseconds: np.ndarray) -> np.ndarray:
    """The bins of durations in ns, none negative, in int64."""
    seconds = nanoseconds / 1e9
    is_below = seconds < _NORMAL_SECONDS
    with np.errstate(over="ignore"):  # infinity is the bin of the overflow
        bins = np.where(is_below, 0.0, seconds).astype(np.float16).view(np.uint16).astype(np.int64)
    bins[is_below] = np.rint(seconds[is_below] * _STEPS_PER_SECOND)
    return bins


def count_bins(times_ns: np.ndarray, places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys (place << BIN_BITS | bin) in order and how often each occurs, as uint32, of (rows, columns) durations in ns.

    `places` are those of the columns, below 64; a column whose place is negative is left out. A duration of 0 counts in
    the first column alone. Some 25 ns a duration.
    """
    at = np.array(places, np.int64)
    occurs = (times_ns > 0) & (at >= 0)
    occurs[:, 0] = at[0] >= 0
    keys = ((at << BIN_BITS) | fp16_bins(times_ns)).astype(np.uint32)
    keys, counts = np.unique(keys[occurs], return_counts=True)
    return keys, counts.astype(np.uint32)
