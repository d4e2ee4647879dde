"""The account's time by state from rows at hand, added up by the compiled core.

The core knows attempts, groups and rows; here is who takes part in which comparison and whose the time after the last
row is. Cost: about 1 us per row, more where rows are objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import cast

from goodput._core import DIED, ENDED, RUNNING, CoreRun
from goodput.account.attempts import Attempt, Row, Run, padded, states_of_phases
from goodput.account.by_core.attempt_sums import AttemptSums, add_tail, attempt_sums
from goodput.account.facts import Facts, Key
from goodput.account.slow_ranks.pipeline import Pipeline, pipeline_of
from goodput.account.states import STATES, state_of

# A process that was not heard of for so long is not waited for.
SILENT_NS = 120 * 10**9
STEP_MAX = (1 << 62) - 1


class CoreEngine:
    """Feed it with the rows of each attempt, those of a rank in the order of its attempts; then `sums` once.

    All attempts of `facts` with steps are compared. Raises CoreError where the core cannot be loaded.
    """

    def __init__(self, run: Run, facts: Facts, stall_seconds: float):
        self.run, self.facts = run, facts
        self.least_stall_ns = int(stall_seconds * 1e9)
        self.core = CoreRun(self.least_stall_ns)
        self.places: dict[Key, int] = {}
        self.pipelines: dict[int, Pipeline] = {}  # by attempt number
        self.groups: dict[tuple[int, str], int] = {}  # by attempt number and name, "" for a pipeline
        self.wrong = 0  # rows with numbers out of range
        self._attempts = list(chain.from_iterable(facts.by_rank.values()))
        # The core has no time below 0.
        self._origin_ns = min([0, *(attempt.start_ns for attempt in self._attempts)])
        self._units: dict[str, int] = {}
        self._of_rank: dict[int, int] = {}
        self._find_pipelines()
        for attempt in self._attempts:
            if attempt.first_step is not None:
                self._begin(attempt, self._group_of(attempt))

    def _find_pipelines(self) -> None:
        by_number: dict[int, list[Attempt]] = {}
        for attempt in self._attempts:
            if attempt.first_step is not None:
                by_number.setdefault(attempt.attempt, []).append(attempt)
        found = {number: pipeline_of(own) for number, own in by_number.items()}
        self.pipelines = {number: one for number, one in found.items() if one is not None}

    def _group_of(self, attempt: Attempt) -> int:
        """The ranks whose steps are compared with each other's: a group, all ranks in a pipeline."""
        key, pipeline = self.group_name(attempt), self.pipelines.get(attempt.attempt)
        if key not in self.groups:
            shape = (pipeline.stages, pipeline.microbatches or 0) if pipeline else (0, 0)
            self.groups[key] = self.core.group(*shape)
        return self.groups[key]

    def _begin(self, attempt: Attempt, group: int) -> None:
        key = attempt.rank, attempt.attempt
        bound, limit, _, restarts = self.facts.criteria(key)
        place = self.core.attempt(
            attempt.rank,
            attempt.start_ns - self._origin_ns,
            group,
            [STATES[state] for state in states_of_phases(attempt)],
            before=self._of_rank.get(attempt.rank, -1),
            stage=attempt.stage or 0,
            unit=self._units.setdefault(attempt.group_name(), len(self._units)),
        )
        self.places[key] = self._of_rank[attempt.rank] = place
        from_ns = max(bound.from_ns - self._origin_ns, 0)
        self.core.bound(place, from_ns, max(bound.to_ns - self._origin_ns, from_ns))
        # No step is below 0.
        points = [min(max(point, -1), STEP_MAX) for point, _ in restarts if point is not None]
        self.core.limit(place, max(limit, -1), points)

    def group_name(self, attempt: Attempt) -> tuple[int, str]:
        """The attempt number, and the name of those that it is compared with; "" for a pipeline."""
        return attempt.attempt, "" if attempt.attempt in self.pipelines else attempt.group_name()

    def rows(self, key: Key, rows: Iterable[Row]) -> None:
        """Take rows of cumulative totals of one attempt, in the order of their numbers."""
        width, origin_ns, values = len(self.run.attempts[key].phases), self._origin_ns, array("q")
        for row in rows:
            values.extend((row.number, row.step, row.end_ns - origin_ns, row.samples, row.device_ns))
            values.extend(padded(row.totals, width))
            values.extend(padded(row.outside, width))
        if values:
            self.wrong += self.core.fold(self.places[key], values).wrong

    def sums(self) -> dict[Key, AttemptSums]:
        """What each attempt of the facts comes to. No row may follow."""
        alone = None
        for attempt in self._attempts:
            if (attempt.rank, attempt.attempt) not in self.places:
                alone = self.core.group() if alone is None else alone
                self._begin(attempt, alone)
        for attempt in self._attempts:
            self._leave(attempt)
        if not self._attempts:
            return {}
        values = cast("list[list[int]]", self.core.read_all().tolist())
        rates, found = self.core.rates(), {}
        for attempt in self._attempts:
            key = attempt.rank, attempt.attempt
            place = self.places[key]
            own = found[key] = attempt_sums(values[place])
            own.end_ns += self._origin_ns
            own.rate = rates[place] or None
            self._add_losses(key, own)
            self._add_tail(attempt, own)
        return found

    def _leave(self, attempt: Attempt) -> None:
        """Let the others of its group go on without an attempt that is over or silent."""
        key = attempt.rank, attempt.attempt
        if not self.facts.bounds[key].running:
            self.core.end(self.places[key])
        elif self.facts.end_ns - attempt.beat_ns() > SILENT_NS:
            self.core.absent(self.places[key])

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
        known = padded(attempt.totals, len(attempt.phases))
        before = own.rest[STATES.index("lost")]
        tail = self.core.tail(self.places[key], known, state, end_ns - self._origin_ns, how)
        add_tail(own, tail, bound, end_ns)
        lost = own.rest[STATES.index("lost")] - before
        if lost and restarts:
            steps, ns = own.lost_by.get(restarts[0][1], (0, 0))
            own.lost_by[restarts[0][1]] = steps, ns + lost
