"""One step of a pipeline: how long each stage waits for a slower rank or stage, and how long for the schedule.

A pipeline of p stages and m microbatches takes (m - 1) x (time of its slowest stage) + (time of all stages) per
microbatch (GPipe and 1F1B alike), so a stage with own time T above the others' costs them (m - 1) / m of the
difference. A rank that is slower than its stage holds up the stage's collective too, and costs the others all of the
difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

from goodput.account.attempts import Attempt


class Pipeline(NamedTuple):
    """`microbatches` is None where ranks do not declare it, or declare different numbers."""

    stages: int
    microbatches: int | None

    def bubble_ns(self, step_ns: int) -> int:
        """The least idle time of a step whose work is spread evenly; 0 where microbatches are unknown."""
        if self.microbatches is None:
            return 0
        return max(step_ns, 0) * (self.stages - 1) // (self.microbatches + self.stages - 1)

    def held_up_ns(self, late_ns: int) -> int:
        """What a stage that works so much longer costs another one; all of it where microbatches are unknown."""
        if self.microbatches is None:
            return late_ns
        return late_ns * (self.microbatches - 1) // self.microbatches

    def kept_ns(self, waited_ns: int, communication_ns: int, own_ns: int) -> int:
        """How much of the ranks' waiting for each other remains if the even schedule's bubble comes first.

        1F1B hides a part of the bubble behind a slow rank of an early stage, so spreading its work evenly would bring that
        part back. At most half of the waiting is taken for it, since an interleaved schedule has a smaller bubble.
        """
        if self.microbatches is None:
            return waited_ns
        bubble_ns = own_ns * (self.stages - 1) // self.microbatches
        return min(waited_ns, max(communication_ns - bubble_ns, waited_ns // 2))


def pipeline_of(attempts: Iterable[Attempt]) -> Pipeline | None:
    """The pipeline that these attempts form: all declare a stage, and there are at least two."""
    stages, counts = set(), set()
    for attempt in attempts:
        if attempt.stage is None:
            return None
        stages.add(attempt.stage)
        counts.add(attempt.microbatches)
    if len(stages) < 2:
        return None
    count = counts.pop() if len(counts) == 1 else None
    return Pipeline(1 + max(stages), count if count and count > 0 else None)


@dataclass
class Unit:
    """Ranks of a stage that meet in a collective, in one step.

    `least_ns` is the communication that all of them share; `own_ns` is the own time of the ranks that waited least.
    """

    stage: int
    least_ns: int
    own_ns: int
    last: list  # the keys of the ranks that waited least


def unit_of(stage: int, members: list[tuple]) -> Unit:
    """`members` are a unit's ranks: (key, communication, the same in the window, own time, length) in ns."""
    least_ns = min(communication for _, communication, *_ in members)
    last = [(key, own) for key, communication, _, own, _ in members if communication == least_ns]
    return Unit(stage, least_ns, max(own for _, own in last), [key for key, _ in last])


@dataclass
class Waiting:
    """Per unit, waiting for one slow rank and for a slow stage; `ranks` and `stages` are those waited for.

    `slow_ns` is the usual own time of the slow stage.
    """

    pipeline: Pipeline
    slow_ns: int
    for_rank: list[int]
    for_stage: list[int]
    ranks: list
    stages: list[int]

    def covered_ns(self, unit: Unit, own_ns: int) -> int:
        """How long a rank of a faster stage would have waited for the slow one, had its own unit's last rank been early."""
        if unit.stage in self.stages:
            return 0
        return self.pipeline.held_up_ns(max(min(self.slow_ns, unit.own_ns) - own_ns, 0))


def waiting(pipeline: Pipeline, units: list[Unit], own_ns: dict[int, list[int]]) -> Waiting:
    """Split what each unit's ranks share in `communication`; `own_ns` are the own times of each stage's ranks."""
    usual = {stage: median_low(times) for stage, times in own_ns.items()}
    slow = max(usual.values())
    longest = max(unit.own_ns for unit in units)
    found = Waiting(pipeline, slow, [], [], [], [stage for stage, ns in sorted(usual.items()) if ns == slow])
    for unit in units:
        for_rank = min(max(longest - max(slow, unit.own_ns), 0), unit.least_ns)
        late = pipeline.held_up_ns(max(slow - unit.own_ns, 0))
        found.for_rank.append(for_rank)
        found.for_stage.append(min(late, unit.least_ns - for_rank))
        if unit.own_ns == longest:
            found.ranks += unit.last
    return found
