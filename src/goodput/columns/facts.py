"""The facts of a run's attempts in arrays, and those of a run that goes on gathered for all attempts at once.

The same facts as account.facts.gather has, in about a third of the time (bench/README.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from goodput.account import facts as account_facts
from goodput.account.attempts import Attempt, Run
from goodput.account.derived import Derived
from goodput.account.facts import SUBMIT_NS_MAX, Bound, ExpectedRanks, Facts, Key, RankRange
from goodput.account.resume import KEEP_ALL, kept_until, resume_points
from goodput.columns.fold_table import CriteriaColumns
from goodput.columns.run_columns import RunColumns, columns_of
from goodput.slices import Slices

_FIELDS = ("alive", "ended", "end_mark", "phase", "worker", "submit_time", "world_size")
_TIMES = ("last_ns", "rows_end_ns", "seen_ns", "received_ns", "end_ns")
_read = attrgetter(*_FIELDS, *_TIMES)
_NEVER = -(1 << 63)


@dataclass
class ColumnFacts(Facts):
    """Facts with those of attempts in arrays, in the order of `attempts`; the mappings are views of these."""

    attempts: RunColumns | None = None
    columns: CriteriaColumns | None = None

    def span(self, number: int, attempts: Sequence[Attempt]) -> tuple[int, int]:
        assert self.attempts is not None and self.columns is not None
        some = self.attempts.number == number
        return int(self.columns.from_ns[some].min()), int(self.columns.to_ns[some].max())

    def without_attempts(self) -> ColumnFacts:
        nothing = {name: {} for name in ("limits", "bounds", "by_rank", "after", "own_points")}
        return replace(self, **nothing, attempts=None, columns=None)


def in_columns(run: Run, facts: Facts, attempts: RunColumns | None = None) -> ColumnFacts:
    """The same facts with arrays. `attempts` are those of the run, if they are at hand."""
    if isinstance(facts, ColumnFacts):
        return facts
    attempts = RunColumns(run, facts.bounds) if attempts is None else attempts
    bounds = [facts.bounds[key] for key in attempts.keys]
    columns = {
        name: np.array([getattr(one, name) for one in bounds], np.int64 if name.endswith("_ns") else bool)
        for name in Bound.__dataclass_fields__
    }
    limits = np.array([facts.limits[key] for key in attempts.keys], np.int64)
    restarts = [facts.after[key] for key in attempts.keys]
    found = {name: getattr(facts, name) for name in Facts.__dataclass_fields__}
    criteria = CriteriaColumns(**columns, limit=limits, restarts=restarts)
    return ColumnFacts(**found, attempts=attempts, columns=criteria)


class _Moments:
    """When attempts began, were seen and ended, by attempt, and what else the facts of a running run need of them."""

    def __init__(self, attempts: RunColumns, values: list[tuple]):
        kinds = [bool, None, None, None, None, None, np.int64, *[np.int64] * len(_TIMES)]
        columns = columns_of(values, kinds)
        self.alive, self.ended, self.end_marks, self.phases, self.workers, submits, self.world_size = columns[
            :7
        ]
        last, self.rows_end, seen, received, end = columns[7:]
        self.start, self.submits = attempts.start_ns, [time for time in submits if time is not None]
        self.is_over = ~self.alive | np.array([bool(one) for one in self.ended], bool)
        self.over_ns = np.maximum(np.where(end != 0, end, last), self.start)
        self.beat = np.maximum(
            np.maximum(self.start, last), np.maximum(self.rows_end, np.where(self.alive, seen, self.start))
        )
        self.received = np.where(received != 0, received, seen)
        newest = int(attempts.number.max(initial=0))
        is_newest = attempts.number == newest
        self.world = int(np.maximum(self.world_size, attempts.rank + 1)[is_newest].max(initial=0))
        self.is_open = attempts.is_last & ~self.is_over & (attempts.rank < self.world)

    def is_stale(self, now_ns: int, stale_seconds: float | None) -> np.ndarray:
        """See account.facts.is_stale."""
        if stale_seconds is None:
            return np.zeros(len(self.start), bool)
        return now_ns - self.received > stale_seconds * 1e9


def gathering(
    attempts: RunColumns, now_ns: int, threshold_ns: int, stale_seconds: float | None
) -> Slices[ColumnFacts]:
    """As account.facts.gathering with `known_only`."""
    run = attempts.run()
    moments = _Moments(attempts, (yield from attempts.reading(_read)))
    yield
    is_stale = moments.is_stale(now_ns, stale_seconds)
    is_ordinary = run.end_ns is None and run.only_ranks is None and not all(moments.workers)
    if not is_ordinary or any(moments.end_marks) or is_stale[moments.is_open].all():
        # Ended or ending, all silent, asked for some of its ranks, or without trainers: a case for the general code.
        facts = yield from account_facts.gathering(run, now_ns, threshold_ns, stale_seconds, known_only=True)
        yield
        return in_columns(run, facts, attempts)
    return (yield from _of_running(run, attempts, moments, now_ns, threshold_ns, stale_seconds))


def _of_running(
    run: Run,
    attempts: RunColumns,
    moments: _Moments,
    now_ns: int,
    threshold_ns: int,
    stale_seconds: float | None,
) -> Slices[ColumnFacts]:
    """The facts of a run that was reported lately, each of whose processes has a rank."""
    start = int(moments.start.min()) if run.start_ns is None else run.start_ns
    submitted = [int(time * 1e9) for time in moments.submits]
    start = min([start, *(ns for ns in submitted if ns > start - SUBMIT_NS_MAX)])
    end = max(start, now_ns)
    # The last moment up to which every rank that still reports was observed.
    fresh = moments.beat[moments.is_open & ~moments.is_stale(end, stale_seconds)]
    end = max(start, min(end, int(fresh.min(initial=end))))
    own, died = _ends(attempts, moments, end, moments.is_stale(end, stale_seconds))
    yield
    points = resume_points(run)
    numbers = list(points)
    if len(numbers) == 1:
        limits: Mapping[Key, int] = Derived(attempts.places, lambda *_: KEEP_ALL)
        limit = np.full(len(attempts), KEEP_ALL)
        world = int(np.maximum(moments.world_size, attempts.rank + 1).max())
        expected = ExpectedRanks([RankRange(0, world, [(start, end)])])
    else:
        limits = kept_until(run, points, has_failed=False)
        limit = np.array([limits[key] for key in attempts.keys], np.int64)
        yield
        # When attempts ended is asked for only where an end mark says so.
        expected = account_facts.expected_ranks(run, start, end, {})
    yield
    after = account_facts.restarts_after(points, numbers[1:])
    restarts = [after[number] for number in attempts.number.tolist()]
    low, high, overlaps = _placed(attempts, moments.start, start, end, own, expected)
    has_phase = np.array([bool(one) for one in moments.phases], bool)
    running = attempts.is_last & ~moments.is_over & has_phase
    columns = CriteriaColumns(low, high, own, died, running, low == moments.start, limit, restarts)
    places = attempts.places
    return ColumnFacts(
        *(
            start,
            end,
            "running",
            threshold_ns,
            points,
            limits,
            Derived(places, lambda _, at: columns.bound(at)),
            expected,
            account_facts.NO_WINDOW_NS,
        ),
        *(attempts.by_rank(), run.starts(), int(own.max())),
        restarts=numbers[1:],
        overlaps=overlaps,
        after=Derived(places, lambda _, at: restarts[at]),
        attempts=attempts,
        columns=columns,
    )


def _ends(
    attempts: RunColumns, moments: _Moments, until: int, is_stale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where each attempt's time ends, `until` at the latest, and whether it died by then."""
    known, is_followed = moments.over_ns, ~moments.is_over & ~attempts.is_last
    if is_followed.any():
        later = np.append(moments.start[1:], 0)
        follows = np.minimum(moments.beat, np.maximum(later, moments.start))
        known = np.where(is_followed, follows, known)
    is_known = moments.is_over | is_followed
    died = is_known & np.array([one != "finished" for one in moments.ended], bool)
    own = np.where(is_known, known, np.where(is_stale, moments.beat, np.maximum(until, moments.start)))
    own = np.maximum(own, moments.rows_end)
    return np.minimum(own, until), died & (own <= until)


def _placed(
    attempts: RunColumns, begun: np.ndarray, start: int, end: int, own: np.ndarray, expected: ExpectedRanks
) -> tuple[np.ndarray, np.ndarray, int]:
    """Where the time of each attempt counts, see account.facts.Bound, and how many overlap with the one before."""
    low, high, overlaps = np.maximum(begun, start), np.minimum(own, end), 0
    at = np.full(1 + int(attempts.of[-1]), start)
    # The first attempt of each rank, then the second.
    for turn in range(int(attempts.turn.max(initial=0)) + 1):
        some = np.flatnonzero(attempts.turn == turn)
        of = attempts.of[some]
        before = at[of]
        overlaps += int(
            ((begun[some] < before) & (own[some] > begun[some]) & (before > account_facts.NO_WINDOW_NS)).sum()
        )
        low[some] = np.minimum(np.maximum(before, begun[some]), end)
        at[of] = np.maximum(before, high[some])
    beyond = 0
    for first, count, spans in expected.ranges:
        beyond = first + count
        some = np.flatnonzero((attempts.rank >= first) & (attempts.rank < beyond))
        begins, ends = np.array([*spans, (_NEVER, _NEVER)], np.int64).T
        span = np.searchsorted(ends[:-1], low[some], side="right")
        low[some] = np.maximum(low[some], begins[span])
        high[some] = np.where(span < len(spans), np.minimum(high[some], ends[span]), low[some])
    return low, np.maximum(low, np.where(attempts.rank < beyond, high, low)), overlaps
