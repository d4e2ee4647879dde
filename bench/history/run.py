"""The run of bench.history.cost: the rows of its ranks, and the pushes of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.aggregator.load import COMMUNICATION, FORWARD, KINDS, PHASES, SAMPLES, SHARES
from goodput.aggregator.accounts.snapshots import rows_between
from goodput.wire import schema
from goodput.wire.step_blocks import DEVICE, END, NUMBER, START, STEP, TOTALS
from goodput.wire.step_blocks import SAMPLES as SAMPLES_COLUMN
from goodput.wire.step_columns import encode

RUN, RANKS, RANKS_OF_NODE = "history", 128, 8
STEP_NS, CHECKPOINT_STEPS = 10**9, 1000
# After so many steps the ranks wait as before.
PERIOD_STEPS = 1 << 15


class Steps:
    """The rows of ranks of each kind as they go on; all ranks of a kind have the same."""

    def __init__(self, start_ns: int):
        self._start_ns, self._waited_ns, self.done = start_ns, 0, 0
        self._waits_ns = np.random.default_rng(1).integers(0, STEP_NS // 50, PERIOD_STEPS)

    def take(self, count: int) -> list[np.ndarray]:
        """The next rows, for each kind as in StepColumns.values."""
        number = np.arange(self.done + 1, self.done + count + 1, dtype=np.int64)
        waits_ns = self._waits_ns[(number - 1) % PERIOD_STEPS]
        waited_ns = self._waited_ns + np.cumsum(waits_ns)
        self.done, self._waited_ns = self.done + count, int(waited_ns[-1])
        return [self._rows(number, waits_ns, waited_ns, kind) for kind in range(KINDS)]

    def _rows(self, number: np.ndarray, waits_ns: np.ndarray, waited_ns: np.ndarray, kind: int) -> np.ndarray:
        """The higher the kind, the more a rank computes and the less it waits for the others."""
        values = np.zeros((TOTALS + 2 * len(PHASES), len(number)), np.int64)
        values[NUMBER], values[STEP], values[SAMPLES_COLUMN] = number, number - 1, SAMPLES * number
        values[END] = self._start_ns + number * STEP_NS
        values[START] = values[END] - STEP_NS + waits_ns
        totals = values[TOTALS::2]
        for place, share in enumerate(SHARES):
            totals[place] = (int(share * STEP_NS) + place) * number
        # The time before a step comes out of its own; it varies, and so do the two phases that make up for it.
        totals[FORWARD] += kind * STEP_NS // 1000 * number
        totals[COMMUNICATION] -= kind * STEP_NS // 1000 * number + waited_ns
        totals[0] += number * STEP_NS - totals.sum(axis=0)
        values[TOTALS + 1] = np.minimum(waited_ns, totals[0])
        values[DEVICE] = totals[FORWARD]
        return values


class Pushes:
    """The pushes of all nodes, round by round, until every rank has `steps`; after each round a state is due."""

    def __init__(self, ranks: int, steps: int, start_ns: int):
        self._ranks, self._count, self._start_ns = ranks, steps, start_ns
        self.steps_a_push = rows_between(ranks) // ranks
        self._steps, self._events = Steps(start_ns), 0

    @property
    def done(self) -> int:
        """The steps of each rank that were taken."""
        return self._steps.done

    def rounds(self) -> Iterator[list[bytes]]:
        for reports in self.reports():
            sequence = reports[0].sequence
            yield [
                schema.encode(
                    schema.NodeReport(reports[at].identity.host, sequence, reports[at : at + RANKS_OF_NODE])
                )
                for at in range(0, self._ranks, RANKS_OF_NODE)
            ]

    def reports(self) -> Iterator[list[schema.RankReport]]:
        """The same as a report of each rank."""
        while self.done < self._count:
            first = self.done
            rows = self._steps.take(min(self.steps_a_push, self._count - first))
            blocks = [encode(values) for values in rows]
            lives = [self._live(values) for values in rows]
            events = self._checkpoints(first)
            yield [
                schema.RankReport(
                    self._identity(rank), lives[0].now_ns, PHASES, lives[rank % KINDS],
                    blocks=[blocks[rank % KINDS]], events=events if rank == 0 else [],
                )
                for rank in range(self._ranks)
            ]  # fmt: skip

    def _identity(self, rank: int) -> schema.Identity:
        return schema.Identity(
            run=RUN, rank=rank, attempt=1, world_size=self._ranks, host=f"n{rank // RANKS_OF_NODE}",
            pid=1000 + rank, start_ns=self._start_ns, device="NVIDIA H100 80GB HBM3",
            device_uuid=f"GPU-{rank:012x}", group="dp0", flops_per_step=1e15, peak_flops_per_second=9.89e14,
            gpu_hour_cost=2.5, dtype="bf16",
        )  # fmt: skip

    def _live(self, values: np.ndarray) -> schema.Live:
        done, end_ns = int(values[NUMBER, -1]), int(values[END, -1])
        totals = tuple(values[TOTALS::2, -1].tolist())
        return schema.Live(
            now_ns=end_ns, last_ns=end_ns, phase="forward", step_next=done, steps_done=done, samples=SAMPLES * done,
            alive=True, ended="", end_ns=0, totals=totals, cost_ns=12_000 * done,
        )  # fmt: skip

    def _checkpoints(self, first: int) -> list[schema.EventRow]:
        found = []
        for step in range(first, self.done):
            if step % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1:
                self._events += 1
                at_ns = self._start_ns + (step + 1) * STEP_NS
                found.append(schema.EventRow(self._events, "checkpoint_committed", at_ns, step))
        return found
