"""A discrete-event simulator of pipeline-parallel training: what each rank works and waits, and the true slowdown.

Each of `replicas` pipelines has one rank per stage, ranks are numbered by stage first. A rank works through the
forward and backward passes of its microbatches in its schedule's order, each as soon as the neighbouring stage's
result is there; a step ends with an all-reduce among the ranks of each stage. Communication itself takes
`reduce_seconds` only.

    lives = Training(4, 8, 2).run(20, lambda step, stage, replica, microbatch: 1.5 if stage == 3 else 1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from support.account.account_history import Process

# Seconds of forward and backward of one microbatch together, by (step, stage, replica, microbatch).
Work = Callable[[int, int, int, int], float]
FORWARD_SHARE = 1 / 3


@dataclass
class Training:
    stages: int
    microbatches: int
    replicas: int = 1
    schedule: str = "1f1b"
    reduce_seconds: float = 0.0
    other_seconds: float = 0.0  # own work of each rank in each step, besides microbatches

    def run(self, steps: int, work: Work) -> list[tuple[list[float], list[float]]]:
        """Per rank, own and waiting seconds of each step; a step ends when the next one begins."""
        ranks = range(self.stages * self.replicas)
        clocks, found = [0.0 for _ in ranks], [([], []) for _ in ranks]
        for step in range(steps):
            began = list(clocks)
            own = [self.other_seconds for _ in ranks]
            for replica in range(self.replicas):
                self._pass(step, replica, work, clocks, own)
            for stage in range(self.stages):
                group = range(stage * self.replicas, (stage + 1) * self.replicas)
                end = max(clocks[rank] for rank in group) + self.reduce_seconds
                for rank in group:
                    clocks[rank] = end
            for rank in ranks:
                found[rank][0].append(own[rank])
                found[rank][1].append(clocks[rank] - began[rank] - own[rank])
        return found

    def _pass(self, step: int, replica: int, work: Work, clocks: list[float], own: list[float]) -> None:
        """One pipeline's step: the first operation of any stage whose input is there goes next."""
        queues = [list(self._order(stage)) for stage in range(self.stages)]
        done: dict[tuple[str, int, int], float] = {}
        for stage in range(self.stages):
            clocks[stage * self.replicas + replica] += self.other_seconds
        while any(queues):
            for stage, queue in enumerate(queues):
                rank = stage * self.replicas + replica
                while queue:
                    kind, microbatch = queue[0]
                    needed = self._needed(kind, stage, microbatch)
                    if needed is not None and needed not in done:
                        break
                    share = FORWARD_SHARE if kind == "F" else 1 - FORWARD_SHARE
                    seconds = share * work(step, stage, replica, microbatch)
                    clocks[rank] = max(clocks[rank], 0.0 if needed is None else done[needed]) + seconds
                    own[rank] += seconds
                    done[kind, stage, microbatch] = clocks[rank]
                    queue.pop(0)

    def _order(self, stage: int) -> Iterator[tuple[str, int]]:
        warm = self.microbatches if self.schedule == "gpipe" else min(self.stages - stage, self.microbatches)
        yield from (("F", i) for i in range(warm))
        for i in range(self.microbatches):
            yield "B", i
            if i + warm < self.microbatches:
                yield "F", i + warm

    def _needed(self, kind: str, stage: int, microbatch: int) -> tuple[str, int, int] | None:
        if kind == "F":
            return ("F", stage - 1, microbatch) if stage else None
        return ("B", stage + 1, microbatch) if stage + 1 < self.stages else ("F", stage, microbatch)

    def slowdown(self, steps: int, work: Work) -> float:
        """Time of the run over its time with each step's work spread evenly over ranks and microbatches."""
        whole = self.stages * self.replicas * self.microbatches

        def even(step: int, *_) -> float:
            return means[step]

        means = [sum(self._all(step, work)) / whole for step in range(steps)]
        own, waited = self.run(steps, work)[0]
        even_own, even_waited = self.run(steps, even)[0]
        return (sum(own) + sum(waited)) / (sum(even_own) + sum(even_waited))

    def _all(self, step: int, work: Work) -> Iterator[float]:
        for stage in range(self.stages):
            for replica in range(self.replicas):
                yield from (work(step, stage, replica, i) for i in range(self.microbatches))

    def processes(self, steps: int, work: Work, **declared) -> list[Process]:
        """The ranks as docs/frameworks.md has them: a group per stage, waiting in `communication`."""
        fields = {"microbatches": self.microbatches, "world_size": self.stages * self.replicas, **declared}
        ranks = []
        for rank, (own, waited) in enumerate(self.run(steps, work)):
            stage = rank // self.replicas
            one = Process(rank, **{"stage": stage, "group": f"stage{stage}", **fields})
            for busy, wait in zip(own, waited, strict=True):
                one.step(
                    forward=busy * FORWARD_SHARE, backward=busy * (1 - FORWARD_SHARE), communication=wait
                )
            ranks.append(one.finished())
        return ranks
