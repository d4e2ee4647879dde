"""Fold.finish for all attempts at once: the first step and the time after the last one.

Attempts of which a rule moves time (a first step that is lost or stalled, a long tail, a process that died) are finished
one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from goodput.account.attempts import padded
from goodput.account.facts import Key
from goodput.account.fold import median
from goodput.account.stall_threshold import PLANNED_LEAST_NS
from goodput.account.states import (
    CHECKPOINT,
    COMMUNICATION,
    COMPILE,
    PRODUCTIVE,
    STALL,
    STATES,
    UNATTRIBUTED,
    share,
    state_of,
)
from goodput.columns.fold_table import UNKNOWN, FoldTable, RowFold
from goodput.columns.groups import Compared
from goodput.columns.shares import VALUES_MAX, shares
from goodput.slices import AT_A_TIME, Slices


def finishing(
    engine, tails: Mapping[Key, list[int]] | None, zero: list[int]
) -> Slices[tuple[np.ndarray, Compared]]:
    """Finish all folds of an engine with a table, in slices; returns the first steps that are to be compared, and of which
    rows of the table they are."""
    table: FoldTable = engine.folds
    keys = list(table)
    at = table.rows(keys)
    thresholds = np.minimum(table.threshold_ns[at], PLANNED_LEAST_NS)
    firsts = _plain_firsts(table, at, thresholds)
    yield
    tail = _Tails(table, at)
    plain = firsts & tail.are_plain(thresholds)
    if tails is not None or table.row_type is not RowFold:
        plain[:] = False  # Their times are given, or recorded.
    yield
    for done, place in enumerate(np.flatnonzero(~plain).tolist()):
        if done % AT_A_TIME == 0:
            yield
        key = keys[place]
        first = table[key].finish(None if tails is None else tails.get(key, zero))
        if first is not None:
            engine.groups.add(key, first[0], first[1], first[2:], first=True)
    some = np.flatnonzero(plain)
    has_first = some[table.first_length[at[some]] != UNKNOWN]
    compared = _settle_firsts(table, at[has_first])
    yield
    tail.settle(some)
    return at[has_first], compared


def _plain_firsts(table: FoldTable, at: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Attempts without a first step that is held back, or whose first step is kept whole."""
    length, end = table.first_length[at], table.first_end_ns[at]
    from_ns, to_ns = table.from_ns[at], table.to_ns[at]
    found = (table.first_count[at] == 1) & (length > 0) & (length <= thresholds)
    found &= (table.first_step[at] <= table.first_limit[at]) & (end - length >= from_ns) & (end <= to_ns)
    return found | (length == UNKNOWN)


def _settle_firsts(table: FoldTable, at: np.ndarray) -> Compared:
    """Keep the first steps of these attempts; see Fold._settle."""
    inside, length = table.first_inside[at], table.first_length[at]
    usual = table.usual[at]
    for place in np.flatnonzero(usual[:, 0] == UNKNOWN).tolist():
        lengths, works = table.row(int(at[place]))._others
        if lengths:
            usual[place] = median(lengths), median(works)
    excess = np.minimum(length - usual[:, 0], inside[:, PRODUCTIVE] + inside[:, UNATTRIBUTED] - usual[:, 1])
    excess = np.where(usual[:, 0] == UNKNOWN, 0, np.maximum(excess, 0))
    from_compute = np.minimum(excess, inside[:, PRODUCTIVE])
    inside[:, PRODUCTIVE] -= from_compute
    inside[:, UNATTRIBUTED] -= excess - from_compute
    inside[:, COMPILE] += excess
    own = length - inside[:, COMPILE] - inside[:, STALL]
    table.kept[at] += inside
    table.kept_ns[at] += own
    table.kept_steps[at] += 1
    table.work[at] += 1.0
    table.kept_samples[at] += table.first_samples[at]
    return Compared(table.first_step[at], inside[:, COMMUNICATION], own - inside[:, COMMUNICATION], length)


def _as_rows(totals: list[Sequence[int]], width: int) -> np.ndarray:
    """Totals of attempts as (attempts, phases)."""
    if all(type(own) is array and own.typecode == "q" and len(own) == width for own in totals):
        return np.frombuffer(b"".join(totals), np.int64).reshape(len(totals), width)  # type: ignore[arg-type]
    return np.array([padded(own, width) for own in totals], np.int64).reshape(len(totals), width)


class _Tails:
    """The time of attempts after their last steps; see Fold._tail."""

    def __init__(self, table: FoldTable, at: np.ndarray):
        self._table, self._at = table, at
        attempts = table.of("attempt", at)
        self._began = table.last_end_ns[at]
        self._end = np.maximum(table.end_ns[at], self._began)
        self.states = np.zeros((len(at), len(STATES)), np.int64)
        # Whether no phase took more than VALUES_MAX: then no sum of them leaves int64.
        self._fits = np.ones(len(at), bool)
        alike: dict[tuple[int, ...], list[int]] = {}
        for place, to_state in enumerate(table.of("to_state", at)):
            alike.setdefault(to_state, []).append(place)
        for to_state, some in alike.items():
            width, places = len(to_state), np.array(some)
            known = _as_rows([attempts[place].totals for place in some], width)
            grown = np.maximum(known - table.totals[at[places], :width], 0)
            self._fits[places] = (grown <= VALUES_MAX).all(axis=1)
            for state, ns in zip(to_state, grown.T, strict=True):
                self.states[places, state] += ns
        length = self._end - self._began
        self._left = length - self.states.sum(axis=1)
        # Those that were seen beyond the end.
        is_beyond, is_small = self._fits & (self._left < 0), length - self._left <= VALUES_MAX
        some = np.flatnonzero(is_beyond & is_small)
        self.states[some] = shares(self.states[some], length[some], (length - self._left)[some])
        for place in np.flatnonzero(is_beyond & ~is_small).tolist():
            states = self.states[place].tolist()
            self.states[place] = share(states, int(length[place]), sum(states))
        self._left[is_beyond] = 0
        last: dict[tuple[str, int], int] = {}
        phases = [(one.phase, id(one.phase_states)) for one in attempts]
        for attempt, key in zip(attempts, phases, strict=True):
            if key not in last:
                last[key] = state_of(attempt.phase, attempt.phase_states)
        self._last = np.array([last[key] for key in phases], np.int64)

    def are_plain(self, thresholds: np.ndarray) -> np.ndarray:
        """Those of which all time stays in its state."""
        table, at = self._table, self._at
        length = self._end - self._began
        found = self._fits & (table.steps[at] > 0) & (length <= thresholds)
        is_within = (self._began >= table.from_ns[at]) & (self._end <= table.to_ns[at])
        return found & ~table.died[at] & (is_within | (length == 0))

    def settle(self, some: np.ndarray) -> None:
        """Add those of these places."""
        table, at = self._table, self._at[some]
        states = self.states[some]
        states[np.arange(len(some)), self._last[some]] += self._left[some]
        table.saved_ns[at] += states[:, CHECKPOINT]
        table.add_to("compute_ns", at, states[:, PRODUCTIVE])
        running = table.running[at]
        ended = ~running
        states[ended, UNATTRIBUTED] += states[ended, PRODUCTIVE]
        states[ended, PRODUCTIVE] = 0
        table.rest[at] += states
        table.kept_ns[at] += np.where(running, states.sum(axis=1), 0)
        if table.ending is None:
            table.ending = np.zeros_like(table.kept)
        table.ending[at] = states
