"""One step of all ranks of an attempt, as long as its slowest rank's own part and the collective.

In a pipeline of p stages with m microbatches all work of a step is done per microbatch, sends and receives included. Of
these a rank of stage s takes t_s each, and a replica (m - 1) x max(t_s) + sum(t_s) (GPipe and 1F1B alike); all replicas
end together. What ranks wait is known by cause: `bubble` is (p - 1) x the mean t, that of the same work spread evenly,
and `waited` is the rest beyond the collective itself. Cost: 40 us a step of 8 ranks, 120 us of 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from goodput.simulate.scenario import SLOW_KINDS, RunFault, RunPlan

# A step's parts in order; the collective comes before the optimizer.
ORDER = ("loader", "h2d", "forward", "backward", "communication", "optimizer", "none")
SHARES = {"loader": 0.02, "h2d": 0.01, "forward": 0.29, "backward": 0.55, "optimizer": 0.04, "none": 0.005}
COLLECTIVE_SHARE = 0.085
OwnTimes = dict[str, np.ndarray]  # seconds by rank, of each phase but the collective


@dataclass
class Span:
    """Work of all ranks that ends for all at the same moment: (phase, ns by rank), in order.

    Of a step: `waited` and `bubble` are the parts of the collective's ns in which a rank waits for slower ones and for
    the pipeline's schedule, `compile_ns` is part of `forward`, `slow` are the faults that slow single ranks or a stage
    down, and without these it would take `even_ns`.
    """

    parts: list[tuple[str, np.ndarray]]
    is_step: bool = False
    event: str = ""
    waited: np.ndarray | None = None
    bubble: np.ndarray | None = None
    compile_ns: int = 0
    slow: list[RunFault] = field(default_factory=list)
    even_ns: int = 0

    def length_ns(self) -> int:
        """Rank 0's, which is all ranks' but for the launcher's skew in the first span."""
        return sum(int(by_rank[0]) for _, by_rank in self.parts)


class StepModel:
    """The steps of one attempt of a run."""

    def __init__(self, plan: RunPlan, ranks: int, random: np.random.Generator):
        self.plan, self.ranks, self._random = plan, ranks, random

    def step(self, now: float, pause: float = 0.0, compiling: float = 0.0, stuck: float = 0.0) -> Span:
        """The step that begins at `now`; all wait `stuck` seconds longer in its collective."""
        own, base = self._usual(pause)
        collective = COLLECTIVE_SHARE * base
        active = [one for one in self.plan.faults if one.start <= now < one.end]
        collective += sum(one.amount * base for one in active if one.kind == "communication")
        slow = [one for one in active if one.kind in SLOW_KINDS and _is_of_some(one)]
        self._slow_down(own, base, [one for one in active if one.kind in SLOW_KINDS and one not in slow])
        even, _ = self._longest(own, collective)
        self._slow_down(own, base, slow)
        for one in active:
            if one.kind == "hang":
                own[one.phase][self._where(one)] += one.end - now
        longest, bubble = self._longest(own, collective)
        span = self._span(own, longest + stuck, bubble, collective + stuck, compiling)
        span.slow, span.even_ns = slow, round((even + stuck + compiling) * 1e9)
        return span

    def _usual(self, pause: float) -> tuple[OwnTimes, float]:
        """What ranks take where nothing is wrong, and the usual length of the step."""
        workload, ranks, random = self.plan.workload, self.ranks, self._random
        base = workload.step * (1 + workload.noise * random.standard_normal())
        if workload.hiccup_every and random.random() < 1 / workload.hiccup_every:
            base *= 1.5 + random.random()
        own = {phase: np.full(ranks, base * share) for phase, share in SHARES.items()}
        for phase in ("forward", "backward"):
            own[phase] *= 1 + 0.004 * random.standard_normal(ranks)
        own["loader"] = own["loader"] * random.lognormal(0, 0.3, ranks) + pause
        return own, base

    def _slow_down(self, own: OwnTimes, base: float, faults: Sequence[RunFault]) -> None:
        for one in faults:
            where = self._where(one)
            if one.kind == "loader":
                own["loader"][where] += one.amount * base
            for phase in ("forward", "backward"):
                if one.kind in (phase, "compute"):
                    own[phase][where] *= one.amount

    def _where(self, fault: RunFault) -> slice:
        """The ranks that a fault concerns."""
        if fault.rank is not None:
            return slice(fault.rank, fault.rank + 1)
        if fault.stage is not None:
            of_stage = self.ranks // self.plan.stages
            return slice(fault.stage * of_stage, (fault.stage + 1) * of_stage)
        return slice(None)

    def _longest(self, own: OwnTimes, collective: float) -> tuple[float, float]:
        """A step's length, and the part of it that an even schedule idles."""
        busy = sum(own.values(), np.full(self.ranks, collective))
        stages, count = self.plan.stages, self.plan.microbatches
        if stages < 2:
            return float(busy.max()), 0.0
        each = busy.reshape(stages, -1) / count
        replicas = (count - 1) * each.max(axis=0) + each.sum(axis=0)
        return float(replicas.max()), (stages - 1) * float(each.mean())

    def _span(
        self, own: OwnTimes, longest: float, bubble: float, collective: float, compiling: float
    ) -> Span:
        alone = sum(own.values(), np.zeros(self.ranks))
        # All compile at the same time, before their first microbatch.
        own["forward"] = own["forward"] + compiling
        own["communication"] = longest - alone
        parts = [(phase, np.rint(own[phase] * 1e9).astype(np.int64)) for phase in ORDER]
        # All ranks end together, to the nanosecond: the collective takes up what rounding left.
        sums = sum((part for _, part in parts), np.zeros(self.ranks, np.int64))
        dict(parts)["communication"] += sums.max() - sums
        waits = longest - alone - collective
        idle = np.minimum(bubble, waits)
        waited, bubbles = (np.rint(ns * 1e9).astype(np.int64) for ns in (waits - idle, idle))
        return Span(parts, is_step=True, waited=waited, bubble=bubbles, compile_ns=round(compiling * 1e9))


def _is_of_some(fault: RunFault) -> bool:
    return fault.rank is not None or fault.stage is not None
