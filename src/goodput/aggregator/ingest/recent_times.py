"""Quantiles of the step and of each phase over the last minutes of a run, all its ranks together, from fp16 bins.

A phase counts with its time within a step, in the steps that have it. A quantile is the fp16 rounding of the sample that
NumPy's `method="inverted_cdf"` returns (relative error up to 2**-11). A step whose predecessor is missing is left out.
Steps wait until there are FOLD_ROWS of them or somebody asks, and are binned together: about 1 us each. Memory: 5 bytes for
each bin that occurs, phase and minute; a steady phase touches some dozens.

    times = RecentTimes(); times.add(phases, values, None, shift_ns=0); times.quantiles(now_ns)["loader"]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from goodput.account import Row
from goodput.histograms.histogram import value_of
from goodput.wire.step_blocks import END, NUMBER, START, TOTALS

SPAN_NS, SPANS = 60 * 10**9, 5
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
STEP = ""  # the name of the whole step among the phases
NAMES_MAX = 64  # further phases are left out
FOLD_ROWS = 128
_BITS = 16  # of a bin in a key, below the place of its name

_Waiting = tuple[np.ndarray, np.ndarray, int]


class RecentTimes:
    """The times of one run, by minute of our clock."""

    def __init__(self):
        self._places: dict[str, int] = {STEP: 0}
        self._spans: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # keys in order, and how often each occurs
        self._waiting: dict[tuple[str, ...], list[_Waiting]] = {}  # by phases
        self._rows = 0

    def add(self, phases: Sequence[str], values: np.ndarray, before: Row | None, shift_ns: int) -> None:
        """Take steps of a rank that are new, as columns (wire.step_blocks) in order; each must come once.

        `before` is the last row that came before them, `shift_ns` our clock less the host's.
        """
        self._waiting.setdefault(tuple(phases), []).append((_before(values, before), values, shift_ns))
        self._rows += values.shape[1]
        if self._rows >= FOLD_ROWS:
            self._fold()

    def quantiles(self, now_ns: int) -> dict[str, list[float]]:
        """Seconds at each of QUANTILES by phase, and of STEP; empty without steps in the last minutes."""
        self._fold()
        newest = now_ns // SPAN_NS
        self._spans = {k: span for k, span in self._spans.items() if k > newest - SPANS}
        if not self._spans:
            return {}
        keys, counts = _summed(list(self._spans.values()))
        found = {}
        for name, place in self._places.items():
            first, last = np.searchsorted(keys, (place << _BITS, (place + 1) << _BITS))
            if last > first:
                found[name] = _quantiles(keys[first:last] - (place << _BITS), counts[first:last])
        return found

    def _fold(self) -> None:
        waiting, self._waiting, self._rows = self._waiting, {}, 0
        for phases, entries in waiting.items():
            ends_ns, times_ns = _times(entries, len(phases))
            self.add_times(phases, ends_ns, times_ns)

    def add_times(self, phases: Sequence[str], ends_ns: np.ndarray, times_ns: np.ndarray) -> None:
        """Take steps by their ends on our clock and, as (steps, 1 + phases - 1), their lengths and times in each phase
        but the first, which is time in no phase."""
        names = (STEP, *phases[1:])
        places = np.array([self._place(name) for name in names], np.int64)
        with np.errstate(over="ignore"):  # infinity is the bin of the overflow
            bins = (times_ns / 1e9).astype(np.float16).view(np.uint16).astype(np.int64)
        keys = ((places << _BITS) | bins).astype(np.uint32)
        occurs = (times_ns > 0) & (places >= 0)
        occurs[:, 0] = True
        numbers = ends_ns // SPAN_NS
        for k in np.unique(numbers).tolist():
            own = keys[numbers == k][occurs[numbers == k]]
            parts = [self._spans[k]] if k in self._spans else []
            self._spans[k] = _summed([*parts, (own, np.ones(len(own), np.uint8))])
        for k in sorted(self._spans)[:-SPANS]:
            del self._spans[k]

    def _place(self, name: str) -> int:
        if name not in self._places and len(self._places) >= NAMES_MAX:
            return -1
        return self._places.setdefault(name, len(self._places))


def _before(values: np.ndarray, before: Row | None) -> np.ndarray:
    """The column of the row before these, or the first of them once more where it is not known."""
    first = int(values[NUMBER, 0])
    if first > 1 and (before is None or before.number != first - 1):
        return values[:, :1]
    column = np.zeros((len(values), 1), np.int64)
    if first > 1 and before is not None:
        column[NUMBER] = before.number
        for at, parts in ((TOTALS, before.totals), (TOTALS + 1, before.outside)):
            own = column[at::2, 0]
            own[: len(parts)] = parts[: len(own)]
    return column


def _times(entries: Sequence[_Waiting], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of steps on our clock, and their lengths and times in each phase but the first."""
    rows = np.array([1 + values.shape[1] for _, values, _ in entries])
    sequence = np.zeros((TOTALS + 2 * width, int(rows.sum())), np.int64)
    firsts = np.cumsum(rows) - rows
    for at, (before, values, _) in zip(firsts.tolist(), entries, strict=True):
        height = min(len(values), len(sequence))
        sequence[:height, at : at + 1] = before[:height]
        sequence[:height, at + 1 : at + 1 + values.shape[1]] = values[:height]
    follows = np.diff(sequence[NUMBER]) == 1
    follows[firsts[1:] - 1] = False
    spent = np.diff(sequence[TOTALS + 2 :: 2] - sequence[TOTALS + 3 :: 2], axis=1)
    shifts = np.repeat([shift_ns for _, _, shift_ns in entries], rows)
    times = np.vstack(((sequence[END] - sequence[START])[1:], spent))[:, follows]
    return (sequence[END] + shifts)[1:][follows], np.maximum(times.T, 0)


def _summed(spans: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Keys in order and their counts, summed, in as few bytes as the largest needs."""
    keys, place = np.unique(np.concatenate([keys for keys, _ in spans]), return_inverse=True)
    counts = np.bincount(place, np.concatenate([counts for _, counts in spans]), len(keys)).astype(np.int64)
    return keys, counts.astype(np.min_scalar_type(counts.max(initial=0)))


def _quantiles(bins: np.ndarray, counts: np.ndarray) -> list[float]:
    below = np.cumsum(counts, dtype=np.int64)
    ranks = [max(math.ceil(q * int(below[-1])), 1) for q in QUANTILES.values()]
    return [value_of(int(bins[at])) for at in np.searchsorted(below, ranks)]
