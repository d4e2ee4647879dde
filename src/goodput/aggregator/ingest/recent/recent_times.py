"""Quantiles of the step and of each phase over the last minutes of a run, all its ranks together, from fp16 bins.

A phase counts with its time within a step, in the steps that have it. A quantile is the fp16 rounding of the sample that
NumPy's `method="inverted_cdf"` returns (relative error up to 2**-11). Memory: 5 bytes for each bin that occurs, phase and
minute; a steady phase touches some dozens. Older minutes stay as histograms (run_histograms). recent_steps gives the
steps, many at once: about 1 us each.

    times = RecentTimes(); times.add(phases, ends_ns, times_ns); times.quantiles(now_ns)["loader"]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from goodput.aggregator.ingest.recent.bins import count_bins
from goodput.aggregator.ingest.recent.run_histograms import BIN_BITS, RunHistogram, RunHistograms
from goodput.histograms.histogram import value_of

SPAN_NS, SPANS = 60 * 10**9, 5
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_NOTHING = np.zeros(0, np.uint32), np.zeros(0, np.uint8)
STEP = ""  # the name of the whole step among the phases
NAMES_MAX = 64  # further phases are left out


class RecentTimes:
    """The times of one run, by minute of our clock."""

    def __init__(self):
        self._places: dict[str, int] = {STEP: 0}
        self._spans: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # keys in order, and how often each occurs
        self._past = RunHistograms()  # of the minutes before

    def add(self, phases: Sequence[str], ends_ns: np.ndarray, times_ns: np.ndarray) -> None:
        """Take steps by their ends on our clock and, as (steps, 1 + phases - 1), their lengths and times in each phase
        but the first, which is time in no phase."""
        if not len(ends_ns):
            return
        names = (STEP, *phases[1:])
        places = [self._place(name) for name in names]
        numbers = ends_ns // SPAN_NS
        minutes = [int(numbers[0])] if (numbers == numbers[:1]).all() else np.unique(numbers).tolist()
        for k in minutes:
            own = count_bins(times_ns if len(minutes) == 1 else times_ns[numbers == k], places)
            self._spans[k] = _summed([self._spans[k], own] if k in self._spans else [own])
        self._forget(sorted(self._spans)[:-SPANS])

    def quantiles(self, now_ns: int) -> dict[str, list[float]]:
        """Seconds at each of QUANTILES by phase, and of STEP; empty without steps in the last minutes."""
        newest = now_ns // SPAN_NS
        self._forget([k for k in self._spans if k <= newest - SPANS])
        if not self._spans:
            return {}
        keys, counts = _summed(list(self._spans.values()))
        found = {}
        for name, place in self._places.items():
            first, last = np.searchsorted(keys, (place << BIN_BITS, (place + 1) << BIN_BITS))
            if last > first:
                found[name] = _quantiles(keys[first:last] - (place << BIN_BITS), counts[first:last])
        return found

    def histograms(self) -> dict[str, RunHistogram]:
        """Of all steps ever taken, by phase, and of STEP."""
        recent = _summed([*self._spans.values(), _NOTHING])
        return dict(self._past.plus(*recent).by_name(self._places))

    def _forget(self, minutes: list[int]) -> None:
        """Their steps count in the histograms only."""
        for k in minutes:
            self._past = self._past.plus(*self._spans.pop(k))

    def _place(self, name: str) -> int:
        if name not in self._places and len(self._places) >= NAMES_MAX:
            return -1
        return self._places.setdefault(name, len(self._places))


def _summed(spans: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Keys in order and their counts, summed, in as few bytes as the largest needs."""
    keys, place = np.unique(np.concatenate([keys for keys, _ in spans]), return_inverse=True)
    counts = np.bincount(place, np.concatenate([counts for _, counts in spans]), len(keys)).astype(np.int64)
    return keys, counts.astype(np.min_scalar_type(counts.max(initial=0)))


def _quantiles(bins: np.ndarray, counts: np.ndarray) -> list[float]:
    below = np.cumsum(counts, dtype=np.int64)
    ranks = [max(math.ceil(q * int(below[-1])), 1) for q in QUANTILES.values()]
    return [value_of(int(bins[at])) for at in np.searchsorted(below, ranks)]
