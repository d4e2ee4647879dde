"""fp16 bins of many durations at once, the same as histograms.histogram.bin_of_ns has for each."""

from __future__ import annotations

import numpy as np


def fp16_bins(nanoseconds: np.ndarray) -> np.ndarray:
    """The bins of durations in ns, none negative, in int64."""
    with np.errstate(over="ignore"):  # infinity is the bin of the overflow
        return (nanoseconds / 1e9).astype(np.float16).view(np.uint16).astype(np.int64)
