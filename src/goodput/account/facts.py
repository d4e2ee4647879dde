"""What must be known of a whole run before one of its steps can be classified.

Facts are the account's window and the run's status, when each rank is expected, where each attempt's time begins and
ends, up to which step its work counts, and how long a wait is a stall. Cost: microseconds per attempt, none per row nor
per unreported rank.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

from goodput.account.attempts import ABANDONED, Attempt, EndMark, Run
from goodput.account.resume import kept_until, resume_points
from goodput.account.states import INDEX
from goodput.slices import AT_A_TIME, Slices, result_of

Key = tuple[int, int]  # (rank, attempt number)
Span = tuple[int, int]  # unix ns
Restarts = list[tuple[int | None, int]]  # (resume step, attempt number)
# Why a run was declared over, and the statuses of a run whose time has ended.
END_REASONS = ("finished", "failed", "cancelled")
FINAL_STATUSES = (*END_REASONS, ABANDONED)
# A submit time further back than this is a wrong number, not a wait for a scheduler.
SUBMIT_NS_MAX = 90 * 86_400 * 10**9
NO_WINDOW_NS = -(1 << 62)  # before every time, also the negative ones of a log

_DOWN, _QUEUE, _UNOBSERVED = INDEX["down"], INDEX["queue"], INDEX["unobserved"]
_STARTUP, _UNATTRIBUTED = INDEX["startup"], INDEX["unattributed"]


@dataclass(slots=True)
class Bound:
    """Where an attempt's time lies, in unix ns. It counts from `from_ns` to `to_ns`, which lie in the window."""

    from_ns: int
    to_ns: int
    end_ns: int  # of the attempt itself
    died: bool
    running: bool  # its last, unfinished step counts for now
    first: bool  # `from_ns` is the attempt's own start, not one that was cut


# What decides on an attempt's steps: its bound, the last step that counts, how long a wait is a stall, and its restarts.
Criteria = tuple[Bound, int, int, Restarts]


class RankRange(NamedTuple):
    """`count` ranks from `first` on, with the times in which each is expected, in order."""

    first: int
    count: int
    spans: list[Span]


class ExpectedRanks:
    """When each rank is expected: ranges of ranks, disjoint, so a world of 262 144 takes as much as one of four."""

    def __init__(self, ranges: Iterable[RankRange]):
        self.ranges = sorted(ranges, key=lambda one: one.first)
        self._firsts = [one.first for one in self.ranges]

    def __len__(self) -> int:
        """The number of ranks."""
        return sum(one.count for one in self.ranges)

    def spans_of(self, rank: int) -> list[Span]:
        """[] for a rank that is not expected."""
        at = bisect_right(self._firsts, rank) - 1
        if at < 0 or rank >= self.ranges[at].first + self.ranges[at].count:
            return []
        return self.ranges[at].spans

    def apart(self, ranks: Iterable[int]) -> Iterator[RankRange]:
        """All ranges, cut so that each of these ranks is one of its own."""
        left, ordered = iter(self.ranges), sorted(ranks, reverse=True)
        for first, count, spans in left:
            beyond = first + count
            while ordered and ordered[-1] < beyond:
                rank = ordered.pop()
                if rank < first:
                    continue
                if rank > first:
                    yield RankRange(first, rank - first, spans)
                yield RankRange(rank, 1, spans)
                first = rank + 1
            if first < beyond:
                yield RankRange(first, beyond - first, spans)

    def within(self, start_ns: int, end_ns: int) -> ExpectedRanks:
        """The parts of all spans that lie in a window."""
        return ExpectedRanks(
            RankRange(first, count, [
                (max(a, start_ns), min(b, end_ns)) for a, b in spans if a < end_ns and b > start_ns
            ])
            for first, count, spans in self.ranges
        )  # fmt: skip


@dataclass
class Facts:
    """See the module docstring."""

    start_ns: int
    end_ns: int
    status: str
    threshold_ns: int
    points: dict[int, int | None]
    limits: Mapping[Key, int]
    bounds: Mapping[Key, Bound]
    expected: ExpectedRanks
    window_ns: int  # where the requested window begins, NO_WINDOW_NS for the run's own start
    by_rank: dict[int, list[Attempt]]
    starts: dict[int, int]  # when the first rank of each attempt number began
    last_ns: int  # the last end of an attempt, or until when one is known to be alive
    restarts: list[int] = field(default_factory=list)  # attempt numbers after the first
    # Of a run whose processes have no ranks: per attempt, its worker's resume points by attempt number.
    own_points: dict[Key, dict[int, int | None]] = field(default_factory=dict)
    is_part: bool = False  # the requested window does not contain the whole run
    is_to_end: bool = True  # it contains the end of what is known
    may_restart: bool = False  # it failed, and nobody has declared its end: something may start it again
    overlaps: int = 0  # attempts that began before the run did, or before the rank's last one was over
    after: Mapping[Key, Restarts] = field(default_factory=dict)  # of each attempt, see `restarts_after`

    def allocated_ns(self) -> int:
        """The time of the run without that between two of its allocations."""
        if self.own_points or not self.expected.ranges:
            return self.end_ns - self.start_ns
        return sum(end_ns - start_ns for start_ns, end_ns in self.expected.ranges[0].spans)

    def span(self, number: int, attempts: Sequence[Attempt]) -> tuple[int, int]:
        """From when to when the time of these attempts counts, which are all with this number."""
        bounds = [self.bounds[one.rank, number] for one in attempts]
        return min(one.from_ns for one in bounds), max(one.to_ns for one in bounds)

    def without_attempts(self) -> Facts:
        """What is left once an account is done, which takes no memory for each rank."""
        return replace(self, limits={}, bounds={}, by_rank={}, after={}, own_points={})

    def criteria(self, key: Key) -> Criteria:
        """What decides on an attempt's steps, in the order of Fold's parameters."""
        return self.bounds[key], self.limits[key], self.threshold_ns, self.after[key]


def restarts_after(points: dict[int, int | None], restarts: Iterable[int]) -> dict[int, Restarts]:
    """For each attempt number the restarts after it that its steps may be lost by, as (resume step, number), in order.

    A step is lost by the first restart from before it. So these are the next one and those from before all others since
    the attempt: mostly one or two, however many restarts there are.
    """
    found: dict[int, Restarts] = {}
    following: Restarts = []  # the next restart
    lowest: list[tuple[int, int]] = []  # those from before all others since, of falling steps
    numbers = set(restarts)
    for number in sorted(points, reverse=True):
        found[number] = [*following, *(lowest if lowest[:1] != following else lowest[1:])]
        if number in numbers:
            point = points[number]
            following = [(point, number)]
            if point is not None:
                lowest = [(point, number), *(one for one in lowest if one[0] < point)]
    return found


def _restarts_of(run: Run, facts: Facts) -> dict[Key, Restarts]:
    """`restarts_after` of each attempt, those of workers by their own resume points."""
    by_points = {id(points): points for points in (facts.points, *facts.own_points.values())}
    after = {at: restarts_after(points, facts.restarts) for at, points in by_points.items()}
    of = facts.own_points
    return {key: after[id(of.get(key, facts.points))].get(key[1], []) for key in run.attempts}


def gather(
    run: Run,
    now_ns: int,
    threshold_ns: int,
    stale_seconds: float | None = None,
    known_only: bool = False,
    window: tuple[int | None, int | None] | None = None,
) -> Facts:
    """The facts of `run` at `now_ns`. See account.compute for the arguments."""
    return result_of(gathering(run, now_ns, threshold_ns, stale_seconds, known_only, window))


def gathering(
    run: Run,
    now_ns: int,
    threshold_ns: int,
    stale_seconds: float | None = None,
    known_only: bool = False,
    window: tuple[int | None, int | None] | None = None,
) -> Slices[Facts]:
    """As `gather`, in slices, of the attempts that the run has when it begins."""
    run = replace(run, attempts=dict(run.attempts))
    by_rank = run.by_rank()
    yield
    open_ = _open(run, by_rank)
    yield
    start, end, status, may_restart = _window(run, by_rank, open_, now_ns, stale_seconds)
    yield
    until = None
    if known_only and status == "running" and run.end_ns is None:
        # The last moment up to which every rank that still reports was observed. A run whose clock is ahead of ours ends
        # where it begins.
        fresh = [a.beat_ns() for a in open_ if not is_stale(a, end, stale_seconds)]
        end = until = max(start, min([end, *fresh]))
    ends = {}
    for at, attempts in enumerate(by_rank.values()):
        if at % AT_A_TIME == 0:
            yield
        for attempt, later in zip(attempts, [*attempts[1:], None], strict=True):
            own, died = _attempt_end(attempt, later, end, stale_seconds)
            own = max(own, attempt.rows_end_ns)
            ends[attempt.rank, attempt.attempt] = (
                (own, died) if until is None else (min(own, until), died and own <= until)
            )
    if until is None:
        end = max(end, max((own for own, _ in ends.values()), default=end))
    # What an abandoned run may have gone on with unobserved is not lost.
    has_failed = status in ("failed", "cancelled")
    own_points: dict[Key, dict[int, int | None]] = {}
    yield
    if run.is_of_workers():
        points, limits = _resume_each(run, own_points, has_failed)
        expected = _lives(run, ends, end)
    else:
        points = resume_points(run)
        limits = kept_until(run, points, has_failed)
        yield
        expected = expected_ranks(run, start, end, ends)
    yield
    whole = (start, end)
    if window is not None:
        start = max(start, start if window[0] is None else window[0])
        end = max(start, min(end, end if window[1] is None else window[1]))
        expected = expected.within(start, end)
    cut_ns = start if window is not None else NO_WINDOW_NS
    last_ns = max((own for own, _ in ends.values()), default=end)
    starts, bounds = run.starts(), dict[Key, Bound]()
    facts = Facts(
        start, end, status, threshold_ns, points, limits, bounds, expected, cut_ns, by_rank, starts, last_ns
    )
    facts.own_points = own_points
    facts.is_part = (start, end) != whole
    facts.is_to_end = end == whole[1]
    facts.may_restart = may_restart
    facts.restarts = sorted(points)[1:]
    facts.after = _restarts_of(run, facts)
    for at, (rank, attempts) in enumerate(by_rank.items()):
        if at % AT_A_TIME == 0:
            yield
        _place(facts, bounds, expected.spans_of(rank), attempts, ends)
    return facts


def _place(facts: Facts, bounds: dict, spans: list[Span], attempts: list[Attempt], ends) -> None:
    """Place a rank's attempts in the spans in which it is expected; where two overlap the earlier one counts."""
    at, alive = facts.start_ns, facts.status in ("running", "unobserved", ABANDONED)
    for attempt in attempts:
        key = (attempt.rank, attempt.attempt)
        own, died = ends[key]
        facts.overlaps += attempt.start_ns < at and own > attempt.start_ns and at > facts.window_ns
        low, high = min(max(at, attempt.start_ns), facts.end_ns), min(own, facts.end_ns)
        if len(spans) == 1:
            span = spans[0] if low < spans[0][1] else (low, low)
        else:
            next_span = bisect_right(spans, low, key=itemgetter(1))
            span = spans[next_span] if next_span < len(spans) else (low, low)
        low = max(low, span[0])
        high = max(low, min(high, span[1]))
        running = alive and attempt is attempts[-1] and attempt.known_end_ns() is None and attempt.phase != ""
        bounds[key] = Bound(low, high, own, died, running, low == attempt.start_ns)
        at = max(at, min(own, facts.end_ns))


def _resume_each(
    run: Run, own_points: dict, has_failed: bool
) -> tuple[dict[int, int | None], dict[Key, int]]:
    """Resume points and limits of a run of workers, none of which makes another's steps lost.

    A restart's point is the lowest of those workers that restart with it.
    """
    points: dict[int, int | None] = {}
    limits: dict[Key, int] = {}
    for part in run.workers():
        own = resume_points(part)
        is_over = all(attempt.ended == "finished" for attempt in part.attempts.values())
        limits.update(kept_until(part, own, has_failed and not is_over))
        own_points.update(dict.fromkeys(part.attempts, own))
        for number, point in own.items():
            known = points.get(number)
            points[number] = point if known is None else known if point is None else min(known, point)
    return points, limits


def _lives(run: Run, ends: dict[Key, tuple[int, bool]], end_ns: int) -> ExpectedRanks:
    """When each worker is expected: from its first start to its last end. Those without steps are left out."""
    left_out, spans = run.left_out(), dict[int, list[Span]]()
    for part in run.workers():
        rank = next(iter(part.attempts))[0]
        if rank not in left_out:
            begin = min(attempt.start_ns for attempt in part.attempts.values())
            over = min(max(ends[key][0] for key in part.attempts), end_ns)
            spans.setdefault(rank, []).append((min(begin, over), over))
    return ExpectedRanks(RankRange(rank, 1, _disjoint(sorted(own))) for rank, own in spans.items())


def _disjoint(spans: list[Span]) -> list[Span]:
    """Spans in order, each cut where the one before reaches into it."""
    found: list[Span] = []
    for begin, over in spans:
        begin = max(begin, found[-1][1]) if found else begin
        found.append((begin, max(begin, over)))
    return found


def expected_ranks(run: Run, start_ns: int, end_ns: int, ends: dict[Key, tuple[int, bool]]) -> ExpectedRanks:
    """The ranks that the worlds of a run's attempts have; `ends` is when each attempt ended, and whether it died.

    The world may change from attempt to attempt: a rank is expected from the start of an attempt whose world
    includes it to the start of the next one. Time before the first attempt belongs to the first attempt. Between the
    end of an allocation and the next attempt, or its submission, no rank is expected.
    """
    if run.only_ranks is not None:
        return ExpectedRanks(RankRange(rank, 1, [(start_ns, end_ns)]) for rank in set(run.only_ranks))
    worlds: dict[int, int] = {}
    for (rank, number), attempt in run.attempts.items():
        world = worlds.get(number, 1)
        if world < attempt.world_size or world <= rank:
            world = max(attempt.world_size, rank + 1)
        worlds[number] = world
    if not worlds:
        return ExpectedRanks([RankRange(0, 1, [(start_ns, end_ns)])])
    times = _allocations(run, sorted(worlds), start_ns, end_ns, ends)
    ranges, first = [], 0
    for beyond in sorted(set(worlds.values())):
        spans = _joined(span for number, span in times.items() if worlds[number] >= beyond)
        ranges.append(RankRange(first, beyond - first, spans))
        first = beyond
    return ExpectedRanks(ranges)


def _allocations(
    run: Run, numbers: list[int], start_ns: int, end_ns: int, ends: dict[Key, tuple[int, bool]]
) -> dict[int, Span]:
    """For how long the GPUs of each attempt number were allocated, one after the other."""
    starts, released, submitted = run.starts(), _released(run, ends), _submitted(run)
    spans, at = {}, start_ns
    for number, later in zip(numbers, [*numbers[1:], None], strict=True):
        over = end_ns if later is None else min(max(at, starts[later]), end_ns)
        free_ns = over if later is None else min(max(at, released.get(number, over)), over)
        spans[number] = (at, free_ns)
        at = over if later is None or free_ns == over else min(over, max(free_ns, submitted.get(later, over)))
    return spans


def _released(run: Run, ends: dict[Key, tuple[int, bool]]) -> dict[int, int]:
    """When the GPUs of an attempt number were released, where that was declared or it was abandoned.

    A mark of all its processes: they were the newest ones of their ranks then, and none has reported anything since.
    """
    newest, released, unmarked = run.newest(), dict[int, int](), set()
    for (rank, number), attempt in run.attempts.items():
        mark = None if number == newest else attempt.valid_end_mark()
        if mark is None:
            unmarked.add(number)
        else:
            released[number] = max(ends[rank, number][0], mark.at_ns, released.get(number, mark.at_ns))
    return {number: ns for number, ns in released.items() if number not in unmarked}


def _submitted(run: Run) -> dict[int, int]:
    """When each attempt number was submitted, where that is known."""
    times: dict[int, int] = {}
    for (_, number), attempt in run.attempts.items():
        if attempt.submit_time is not None:
            at_ns = int(attempt.submit_time * 1e9)
            times[number] = min(at_ns, times.get(number, at_ns))
    return times


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, as one where the next begins at the end of the one before."""
    found: list[Span] = []
    for begin, over in spans:
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], over)
        else:
            found.append((begin, over))
    return found


class _Window(NamedTuple):
    """A run's time, and how it stands at its end; see Facts."""

    start_ns: int
    end_ns: int
    status: str
    may_restart: bool = False


def _window(run: Run, by_rank, open_: list[Attempt], now_ns: int, stale_seconds: float | None) -> _Window:
    """The run's time and status. A rank's earlier attempts have ended, whether that was reported or not.

    Once all of the newest processes are known to have ended, and not all have finished, the run has failed, at the last
    of their ends. If something starts it again, that is a later attempt, and the time up to it is `down`.
    """
    attempts = list(run.attempts.values())
    start = run.start_ns if run.start_ns is not None else min((a.start_ns for a in attempts), default=now_ns)
    submitted = [int(a.submit_time * 1e9) for a in attempts if a.submit_time is not None]
    start = min([start, *(ns for ns in submitted if ns > start - SUBMIT_NS_MAX)])
    newest = run.newest()
    last = [a for a in attempts if a.attempt == newest]
    if run.is_of_workers():
        last = [own[-1] for own in by_rank.values()]
    stale = all(is_stale(a, now_ns, stale_seconds) for a in open_)
    finished = bool(last) and all(a.ended == "finished" for a in last)
    marks, has_crashed = _marks(last), bool(last) and not open_
    if not stale or not (finished or marks or has_crashed):
        end = max(start, now_ns if run.end_ns is None else run.end_ns)
        if run.end_ns is not None and open_:
            return _Window(start, end, "finished")
        return _Window(start, end, "unobserved" if stale else "running")
    ends = [end_ns for a in attempts if (end_ns := a.known_end_ns()) is not None]
    may_restart = False
    if finished:
        status = "finished"
    elif has_crashed and all(mark.reason == ABANDONED for mark in marks):
        # Marks of an abandoned run bound only how long its GPUs count as allocated if it is started again.
        status, may_restart = "failed", not marks and run.end_ns is None
    else:
        status = max(mark.reason for mark in marks)
        ends += [mark.at_ns for mark in marks]
        ends += [a.beat_ns() for a in open_] if status == ABANDONED else []
    return _Window(start, max(start, max(ends) if run.end_ns is None else run.end_ns), status, may_restart)


def _marks(last: list[Attempt]) -> list[EndMark]:
    """The end marks that hold for a run, of its newest processes.

    One that a person or a scheduler set stands for all: none goes on, and there is no later attempt. That the run is
    abandoned holds as long as no process has reported anything since.
    """
    marks = [mark for a in last if (mark := a.valid_end_mark()) is not None]
    declared = [mark for mark in marks if mark.reason != ABANDONED]
    if not declared and any(a.valid_end_mark() is None and a.ended != "finished" for a in last):
        return []
    return declared or marks


def _open(run: Run, by_rank) -> list[Attempt]:
    """Attempts that may go on: the newest of each rank that the newest attempt's world still has."""
    newest = run.newest()
    last = [a for a in run.attempts.values() if a.attempt == newest]
    world = max([a.world_size for a in last] + [a.rank + 1 for a in last], default=0)
    alone = run.only_ranks is not None or run.is_of_workers()
    return [
        own[-1] for rank, own in by_rank.items() if own[-1].known_end_ns() is None and (alone or rank < world)
    ]


def is_stale(attempt: Attempt, now_ns: int, stale_seconds: float | None) -> bool:
    return (
        stale_seconds is not None and now_ns - (attempt.received_ns or attempt.seen_ns) > stale_seconds * 1e9
    )


def _attempt_end(
    attempt: Attempt, later: Attempt | None, end_ns: int, stale_seconds: float | None
) -> tuple[int, bool]:
    """Where an attempt's time ends, and whether it died; without a reported end it ends at its last beat."""
    known = attempt.known_end_ns()
    if known is None and later is not None:
        known = min(attempt.beat_ns(), max(later.start_ns, attempt.start_ns))
    if known is not None:
        return known, attempt.end_reason() != "finished"
    # An end mark that does not end it says that its run is abandoned.
    if is_stale(attempt, end_ns, stale_seconds) or attempt.valid_end_mark() is not None:
        return attempt.beat_ns(), False
    return max(end_ns, attempt.start_ns), False


def gaps(facts: Facts, rank: int) -> Iterator[tuple[int, int, int, Attempt | None]]:
    """(start_ns, end_ns, state, next attempt) of times in which a rank is expected but has no attempt.

    It is unobserved or down, and queued once its next attempt was submitted. Ranks neither start nor finish at once:
    up to a stall threshold after the attempt's first rank has started it is startup, and up to one before the last rank
    is over, unattributed for a rank that has finished.
    """
    attempts, spans = facts.by_rank.get(rank, []), facts.expected.spans_of(rank)
    at, state = facts.start_ns, _UNOBSERVED
    for attempt in attempts:
        bound = facts.bounds[rank, attempt.attempt]
        until = bound.from_ns
        if at < until:
            begun = facts.starts[attempt.attempt]
            is_skew = attempt.start_ns - begun <= facts.threshold_ns and not facts.own_points
            begun = begun if is_skew else until
            queued = begun if attempt.submit_time is None else int(attempt.submit_time * 1e9)
            for part in _expected(spans, at, until, ((state, queued), (_QUEUE, begun), (_STARTUP, until))):
                yield *part, attempt
        at, state = max(at, bound.to_ns), _DOWN
    if at >= facts.end_ns:
        return
    if attempts and attempts[-1].known_end_ns() is None:
        state = _UNOBSERVED
    finished_ns = _finished_last_ns(facts, attempts[-1]) if attempts else at
    for part in _expected(spans, at, facts.end_ns, ((_UNATTRIBUTED, finished_ns), (state, facts.end_ns))):
        yield *part, None


def _finished_last_ns(facts: Facts, attempt: Attempt) -> int:
    """When the last rank was over, if this one finished up to a stall threshold before; else its own end."""
    end_ns = facts.bounds[attempt.rank, attempt.attempt].end_ns
    soon = attempt.end_reason() == "finished" and facts.last_ns - end_ns <= facts.threshold_ns
    return facts.last_ns if soon else end_ns


def _expected(spans, from_ns: int, to_ns: int, parts) -> Iterator[tuple[int, int, int]]:
    """(start_ns, end_ns, state) of `spans` within from_ns to to_ns; `parts` are states and their ends, in order."""
    for low, high in spans:
        at, high = max(low, from_ns), min(high, to_ns)
        for state, end_ns in parts:
            end = min(max(end_ns, at), high)
            if at < end:
                yield at, end, state
                at = end
