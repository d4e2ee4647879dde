"""The account's time by state from rows, added up by the compiled core.

The core knows attempts, groups and rows; here is who takes part in which comparison and whose the time after the last
row is. Cost: about 1 us per row, more where rows are objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from copy import copy
from itertools import chain, zip_longest
from typing import NamedTuple

from goodput._core import DIED, ENDED, READ_COLUMNS, RUNNING, CoreError, CoreRun
from goodput.account.attempts import Attempt, Row, Run, padded, states_of_phases
from goodput.account.by_core.attempt_sums import AttemptSums, add_tail, attempt_sums
from goodput.account.facts import Facts, Key
from goodput.account.slow_ranks.pipeline import Pipeline, pipeline_of
from goodput.account.states import INDEX, STATES, state_of
from goodput.slices import AT_A_TIME, Slices, result_of

# A process that was not heard of for so long is not waited for.
SILENT_NS = 120 * 10**9
STEP_MAX = TIME_MAX = (1 << 62) - 1
ROWS_AT_A_TIME = 1024
_LOST = INDEX["lost"]


class Told(NamedTuple):
    """What the core was told of an attempt: where it is compared (group, stage, unit), its bound, the last step that counts with
    the resume points of later restarts, and the state of each of its phases."""

    place: tuple[int, int, int]
    from_ns: int
    to_ns: int
    limit: int
    points: list[int]
    states: tuple[int, ...]


class Known(NamedTuple):
    """What an engine knows besides its core: what that was told of each attempt, in its order, groups by number and name,
    pipelines by number, units by name, the attempts that were ended, and where the core's time begins, in unix ns."""

    told: list[tuple[Key, Told]]
    groups: list[tuple[tuple[int, str], int]]
    pipelines: dict[int, Pipeline]
    units: dict[str, int]
    ended: list[Key]
    origin_ns: int


class CoreEngine:
    """Feed it with the rows of each attempt, those of a rank in the order of its attempts; then `sums` once.

    All attempts of `facts` with steps are compared. Attempts and facts may change between rows: see `follow`.
    Raises CoreError where the core cannot be loaded.
    """

    def __init__(self, run: Run, facts: Facts, stall_seconds: float):
        self.run, self.facts = run, facts
        self.least_threshold_ns = int(stall_seconds * 1e9)
        self.core = CoreRun(self.least_threshold_ns)
        self.places: dict[Key, int] = {}
        self.pipelines: dict[int, Pipeline] = {}  # by attempt number
        self.groups: dict[tuple[int, str], int] = {}  # by attempt number and name, "" for a pipeline
        self.wrong = 0  # rows with numbers out of range
        self.ended: set[Key] = set()  # attempts whose groups do not wait for them any more
        # The core has no time below 0 and none from TIME_MAX on.
        first_ns = min((attempt.start_ns for attempt in run.attempts.values()), default=0)
        self.origin_ns = 0 if 0 <= first_ns < TIME_MAX // 2 else first_ns
        self._units: dict[str, int] = {}
        self._of_rank: dict[int, Key] = {}  # the last of each rank's attempts
        self._told: dict[Key, Told] = {}
        self._declared = -1  # how often attempts had declared something when they were last placed
        result_of(self._following(facts))

    @classmethod
    def restored(cls, run: Run, core: CoreRun, known: Known, stall_seconds: float) -> CoreEngine:
        """One that goes on from a snapshot; `follow` must be called next."""
        engine = cls.__new__(cls)
        engine.run, engine.core, engine.wrong = run, core, 0
        engine.least_threshold_ns, engine.origin_ns = int(stall_seconds * 1e9), known.origin_ns
        engine._told = dict(known.told)
        engine.places = {key: at for at, key in enumerate(engine._told)}
        engine.groups, engine.pipelines = dict(known.groups), dict(known.pipelines)
        engine.ended, engine._units = set(known.ended), dict(known.units)
        engine._of_rank = {key[0]: key for key in engine.places}
        engine._declared = -1
        return engine

    def known(self) -> Known:
        """See `restored`."""
        groups = list(self.groups.items())
        told = [(key, self._told[key]) for key in self.places]
        return Known(told, groups, self.pipelines, self._units, sorted(self.ended), self.origin_ns)

    def follow(self, facts: Facts) -> bool:
        """Go on under newer facts of the same run; False, and it is of no more use, if folded rows would differ under them."""
        return result_of(self.following(facts))

    def following(self, facts: Facts) -> Slices[bool]:
        """As `follow`, in slices."""
        try:
            return (yield from self._following(facts))
        except CoreError:
            return False

    def _following(self, facts: Facts) -> Slices[bool]:
        self.facts = facts
        stepping = [one for one in chain.from_iterable(facts.by_rank.values()) if one.first_step is not None]
        new = [one for one in stepping if (one.rank, one.attempt) not in self.places]
        declared = sum([one.declared_changes for one in stepping])
        if (new or declared != self._declared) and not self._regroup(stepping):
            return False
        self._declared = declared
        for attempt in new:
            if not self._may_begin(attempt, facts.by_rank[attempt.rank]):
                return False
            group = self._group_of(attempt)
            if self.core.settled(group) >= max(attempt.first_step or 0, 0):
                return False
            self._begin(attempt, group)
        yield
        for at, key in enumerate(facts.bounds.keys() & self.places.keys()):
            if at % AT_A_TIME == 0:
                yield
            self._tell(key)
        return True

    def _may_begin(self, attempt: Attempt, own: list[Attempt]) -> bool:
        """Whether an attempt comes after those of its rank that have begun, and its history has no row that ended in it."""
        before = self._of_rank.get(attempt.rank)
        if before is None:
            return True
        keys = [(one.rank, one.attempt) for one in own]
        if before in keys and keys.index(before) > keys.index((attempt.rank, attempt.attempt)):
            return False
        known = self.core.read(self.places[before])
        return not known["rows"] or known["end_ns"] <= attempt.start_ns - self.origin_ns

    def _regroup(self, stepping: list[Attempt]) -> bool:
        """Find the pipelines; False where one, or the place of an attempt, is another than that of rows that were folded."""
        by_number: dict[int, list[Attempt]] = {}
        for attempt in stepping:
            by_number.setdefault(attempt.attempt, []).append(attempt)
        found = {number: pipeline_of(own) for number, own in by_number.items()}
        begun = {number for number, _ in self.groups}
        if not all(found.get(number) == self.pipelines.get(number) for number in begun):
            return False
        self.pipelines, told = {number: one for number, one in found.items() if one is not None}, self._told
        return all(
            self._place_of(one) == told[one.rank, one.attempt].place
            for one in stepping
            if (one.rank, one.attempt) in told
        )

    def _place_of(self, attempt: Attempt) -> tuple[int, int, int]:
        """See Told.place; of an attempt whose group has begun."""
        unit = self._units.setdefault(attempt.group_name(), len(self._units))
        return self.groups.get(self.group_name(attempt), -1), attempt.stage or 0, unit

    def _group_of(self, attempt: Attempt) -> int:
        """The ranks whose steps are compared with each other's: a group, all ranks in a pipeline."""
        key, pipeline = self.group_name(attempt), self.pipelines.get(attempt.attempt)
        if key not in self.groups:
            shape = (pipeline.stages, pipeline.microbatches or 0) if pipeline else (0, 0)
            self.groups[key] = self.core.group(*shape)
        return self.groups[key]

    def _begin(self, attempt: Attempt, group: int) -> None:
        key, before = (attempt.rank, attempt.attempt), self._of_rank.get(attempt.rank)
        states, place = states_of_phases(attempt), (group, *self._place_of(attempt)[1:])
        self.places[key] = self.core.attempt(
            attempt.rank,
            self._time(attempt.start_ns),
            group,
            [STATES[state] for state in states],
            before=-1 if before is None else self.places[before],
            stage=place[1],
            unit=place[2],
        )
        self._of_rank[attempt.rank] = key
        self._told[key] = Told(place, -1, -1, -2, [], states)

    def _tell(self, key: Key) -> None:
        """Tell the core an attempt's bound, limit and phases where they have changed. Raises CoreError."""
        bound, limit, _, restarts = self.facts.criteria(key)
        from_ns = self._time(bound.from_ns)
        to_ns = max(self._time(bound.to_ns), from_ns)
        # No step is below 0.
        points = [min(max(point, -1), STEP_MAX) for point, _ in restarts if point is not None]
        before, at = self._told[key], self.places[key]
        states = states_of_phases(self.run.attempts[key])
        told = Told(before.place, from_ns, to_ns, max(limit, -1), points, states)
        if told == before:
            return
        if told.states != before.states:
            self.core.phases(at, [STATES[state] for state in states])
        if (told.from_ns, told.to_ns) != (before.from_ns, before.to_ns):
            self.core.bound(at, from_ns, to_ns)
        if (told.limit, told.points) != (before.limit, before.points):
            self.core.limit(at, told.limit, points)
        self._told[key] = told

    def group_name(self, attempt: Attempt) -> tuple[int, str]:
        """The attempt number, and the name of those that it is compared with; "" for a pipeline."""
        return attempt.attempt, "" if attempt.attempt in self.pipelines else attempt.group_name()

    def rows(self, key: Key, rows: Iterable[Row]) -> None:
        """Take rows of cumulative totals of one attempt, in the order of their numbers."""
        width, origin_ns, values = self.width(key) if key in self._told else 0, self.origin_ns, array("q")
        for row in rows:
            values.extend((row.number, row.step, row.end_ns - origin_ns, row.samples, row.device_ns))
            values.extend(padded(row.totals, width))
            values.extend(padded(row.outside, width))
        if values:
            self.wrong += self.core.fold(self.places[key], values).wrong

    def all_rows(self, attempts: Iterable[Attempt]) -> None:
        """Take all rows of attempts at hand: of each rank some at a time, since only so many wait for those of other ranks."""
        of_rank: dict[int, list[tuple[Key, list[Row]]]] = {}
        for attempt in attempts:
            own = (attempt.rank, attempt.attempt), attempt.ordered_rows()
            of_rank.setdefault(attempt.rank, []).append(own)
        turns = [
            [
                (key, rows[at : at + ROWS_AT_A_TIME])
                for key, rows in own
                for at in range(0, len(rows), ROWS_AT_A_TIME)
            ]
            for own in of_rank.values()
        ]
        for some in zip_longest(*turns):
            for key, rows in filter(None, some):
                self.rows(key, rows)

    def _time(self, ns: int) -> int:
        """A time as the core has it."""
        return min(max(ns - self.origin_ns, 0), TIME_MAX)

    def width(self, key: Key) -> int:
        """How many phases the rows of an attempt have."""
        return len(self._told[key].states)

    def leave(self, key: Key) -> None:
        """Let the others of its group go on without an attempt that is over or, for now, silent."""
        if not self.facts.bounds[key].running:
            self.core.end(self.places[key])
            self.ended.add(key)
        elif self.facts.end_ns - self.run.attempts[key].beat_ns() > SILENT_NS:
            self.core.absent(self.places[key])

    def copy(self) -> CoreEngine:
        """One that goes on apart from this one."""
        other = copy(self)
        other.core = CoreRun.restore(self.core.save())
        for name in ("places", "pipelines", "groups", "ended", "_units", "_of_rank", "_told"):
            setattr(other, name, copy(getattr(self, name)))
        return other

    def sums(self) -> dict[Key, AttemptSums]:
        """What each attempt of the facts comes to. No row may follow."""
        return result_of(self.summing())

    def summing(self) -> Slices[dict[Key, AttemptSums]]:
        """As `sums`, in slices."""
        attempts = list(chain.from_iterable(self.facts.by_rank.values()))
        alone = None
        for attempt in attempts:
            key = (attempt.rank, attempt.attempt)
            if key not in self.places:
                alone = self.core.group() if alone is None else alone
                self._begin(attempt, alone)
                self._tell(key)
        yield
        for at, attempt in enumerate(attempts):
            if at % AT_A_TIME == 0:
                yield
            self.leave((attempt.rank, attempt.attempt))
        if not attempts:
            return {}
        values, width = self.core.read_all().cast("B").cast("q"), len(READ_COLUMNS)
        yield
        rates, found = self.core.rates(), {}
        for at, attempt in enumerate(attempts):
            if at % AT_A_TIME == 0:
                yield
            key = attempt.rank, attempt.attempt
            place = self.places[key]
            own = found[key] = attempt_sums(values[width * place : width * (place + 1)].tolist())
            own.end_ns += self.origin_ns
            own.rate = rates[place] or None
            if own.lost_steps or own.rest[_LOST]:
                self._add_losses(key, own)
            self._add_tail(attempt, own)
        return found

    def _add_losses(self, key: Key, own: AttemptSums) -> None:
        known = [number for point, number in self.facts.after[key] if point is not None]
        for at, restart in enumerate(known):
            steps, ns = self.core.loss(self.places[key], at)
            if steps or ns:
                own.lost_by[restart] = steps, ns

    def _add_tail(self, attempt: Attempt, own: AttemptSums) -> None:
        key = attempt.rank, attempt.attempt
        bound, restarts = self.facts.bounds[key], self.facts.after[key]
        end_ns = max(bound.end_ns, own.end_ns)
        how = DIED if bound.died else RUNNING if bound.running else ENDED
        state = STATES[state_of(attempt.phase, attempt.phase_states)]
        known = padded(attempt.totals, self.width(key))
        before = own.rest[_LOST]
        tail = self.core.tail(self.places[key], known, state, self._time(end_ns), how)
        add_tail(own, tail, bound, end_ns)
        lost = own.rest[_LOST] - before
        if lost and restarts:
            steps, ns = own.lost_by.get(restarts[0][1], (0, 0))
            own.lost_by[restarts[0][1]] = steps, ns + lost
