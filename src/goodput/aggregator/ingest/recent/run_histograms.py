"""Histograms of all step and phase times that were pushed for a run, classic and native, from counts of fp16 bins.

They grow for as long as the aggregator has the run, as counters do. The bounds of both kinds cut the bins into some 700
cells, which are counted exactly; a steady phase touches a few dozens, of 12 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from goodput.histograms.histogram import BINS, OVERFLOW_SECONDS
from goodput.histograms.native_histogram import FRACTIONS, NativeHistogram, bucket_of_bin

#: Of steps, ten to a factor of ten.
BOUNDS = (
    *(
        round(figure * 10.0**power, 6)
        for power in range(-3, 3)
        for figure in (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
    ),
    1000.0,
)
_BOUND_TEXTS = tuple(map(repr, BOUNDS))
BIN_BITS = 16  # of a bin in a key, below the place of its name
_MASK = (1 << BIN_BITS) - 1
_UNITS_PER_SECOND = 1 << 24  # fp16's smallest step is 2**-24, so sums of bins are exact


def _values(bins: np.ndarray) -> np.ndarray:
    """The seconds that bins stand for; OVERFLOW_SECONDS for the overflow."""
    return np.minimum(bins.astype(np.uint16).view(np.float16).astype(np.float64), OVERFLOW_SECONDS)


def _first_bins() -> np.ndarray:
    """The first bin of each cell; the zero bucket and the overflow have one each."""
    values = _values(np.arange(1, BINS))
    fractions, exponents = np.frexp(values)
    natives = np.searchsorted(FRACTIONS, fractions) + exponents * len(FRACTIONS)
    changes = np.diff(natives, prepend=0) != 0
    changes |= np.diff(np.searchsorted(BOUNDS, values), prepend=0) != 0
    return np.concatenate(([0], np.flatnonzero(changes) + 1, [BINS]))


_FIRST = _first_bins()
_CLASSIC_OF_CELL = np.searchsorted(BOUNDS, [*_values(_FIRST[:-1]), np.inf])
_NATIVE_OF_CELL = [*map(bucket_of_bin, _FIRST.tolist())]


def _cells(bins: np.ndarray) -> np.ndarray:
    return (np.searchsorted(_FIRST, bins, side="right") - 1).astype(np.uint32)


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
        each = (_values(bins) * _UNITS_PER_SECOND).astype(np.int64)
        spent = np.add.reduceat(each * counts, firsts) if len(firsts) else firsts
        for place, more in zip(places[firsts].tolist(), spent.tolist(), strict=True):
            units[place] = units.get(place, 0) + more
        cells, at = np.unique(
            np.concatenate((self.keys, (places << BIN_BITS) | _cells(bins))), return_inverse=True
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
    buckets = list(zip(_BOUND_TEXTS, cumulative.tolist(), strict=True))
    return RunHistogram(buckets, NativeHistogram(native, sum_seconds))
