"""Histograms of all step and phase times that were pushed for a run, classic and native, from counts of fp16 bins.

They grow for as long as the aggregator has the run, as counters do. The bounds of both kinds cut the bins into some 700
cells, which are counted exactly; a steady phase touches a few dozens, of 12 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from goodput.histograms.histogram import BINS, OVERFLOW_SECONDS, SLOTS, value_of
from goodput.histograms.native_histogram import NativeHistogram, bucket_of_bin

#: Of steps, ten to a factor of ten, for heat maps.
BOUNDS = (
    *(
        round(figure * 10.0**power, 6)
        for power in range(-3, 3)
        for figure in (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
    ),
    1000.0,
)
BIN_BITS = 16  # of a bin in a key, below the place of its name
_MASK = (1 << BIN_BITS) - 1
_UNITS_PER_SECOND = 1 << 24  # fp16's smallest step is 2**-24, so sums of bins are exact
_VALUES = np.array([*map(value_of, range(BINS)), OVERFLOW_SECONDS])
_UNITS = (_VALUES * _UNITS_PER_SECOND).astype(np.int64)
_CLASSIC = np.searchsorted(BOUNDS, [*_VALUES[:BINS], np.inf])
_NATIVE = [bucket_of_bin(bin) for bin in range(SLOTS)]
_FIRST = [
    bin
    for bin in range(SLOTS)
    if not bin or (_CLASSIC[bin], _NATIVE[bin]) != (_CLASSIC[bin - 1], _NATIVE[bin - 1])
]
_CELL = np.searchsorted(_FIRST, np.arange(SLOTS), side="right").astype(np.uint32) - 1
_CLASSIC_OF_CELL = _CLASSIC[_FIRST]
_NATIVE_OF_CELL = [_NATIVE[bin] for bin in _FIRST]


class RunHistogram(NamedTuple):
    """Cumulative classic buckets of BOUNDS, without +Inf, and the native histogram."""

    buckets: list[tuple[str, int]]
    native: NativeHistogram


class RunHistograms(NamedTuple):
    """Keys (place of the name and cell) in order, how often each occurs, and the sum by place in units of 2**-24 s."""

    keys: np.ndarray = np.zeros(0, np.uint32)
    counts: np.ndarray = np.zeros(0, np.int64)
    units: Mapping[int, int] = {}

    def plus(self, keys: np.ndarray, counts: np.ndarray) -> RunHistograms:
        """With these besides: keys of place and bin, and how often each occurs."""
        bins, places, units = keys & _MASK, keys >> BIN_BITS, dict(self.units)
        firsts = np.flatnonzero(np.diff(places, prepend=-1))
        # 2**63 units are 17 000 years: more than any minutes of steps have.
        spent = np.add.reduceat(_UNITS[bins] * counts, firsts) if len(firsts) else firsts
        for place, more in zip(places[firsts].tolist(), spent.tolist(), strict=True):
            units[place] = units.get(place, 0) + more
        cells, at = np.unique(
            np.concatenate((self.keys, (places << BIN_BITS) | _CELL[bins])), return_inverse=True
        )
        both = np.concatenate((self.counts, counts))
        return RunHistograms(cells, np.bincount(at, both, len(cells)).astype(np.int64), units)

    def by_name(self, places: Mapping[str, int]) -> Iterator[tuple[str, RunHistogram]]:
        """The histogram of each name that occurred."""
        for name, place in places.items():
            first, last = np.searchsorted(self.keys, (place << BIN_BITS, (place + 1) << BIN_BITS))
            if last > first:
                cells, counts = self.keys[first:last] & _MASK, self.counts[first:last]
                yield name, _histogram(cells, counts, self.units[place] / _UNITS_PER_SECOND)


def _histogram(cells: np.ndarray, counts: np.ndarray, sum_seconds: float) -> RunHistogram:
    native = list(zip([_NATIVE_OF_CELL[cell] for cell in cells.tolist()], counts.tolist(), strict=True))
    below = np.searchsorted(_CLASSIC_OF_CELL[cells], np.arange(len(BOUNDS)), side="right")
    cumulative = np.concatenate(([0], np.cumsum(counts)))[below]
    buckets = list(zip(map(repr, BOUNDS), cumulative.tolist(), strict=True))
    return RunHistogram(buckets, NativeHistogram(native, sum_seconds))
