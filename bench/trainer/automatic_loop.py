"""The training loop that bench/trainer/automatic.py times: blocks of steps, bare and measured in turns, in one process.

    python -m bench.trainer.automatic_loop KIND SIZE SECONDS MODE...     # MODE: bare, again (bare, too), hand, auto, traceml
    python -m bench.trainer.automatic_loop KIND                          # prints the SIZE that makes a step that long here

Writes the length of every step, in microseconds, as JSON: {mode: [[...] of each block]}. All blocks use the same
batches: others would lie elsewhere in the caches. The steps of a block before its settled part are left out: in them
root modules are found and the overhead budget takes its measure.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from time import perf_counter

import torch
from torch import nn

# Per kind: width of the layers, and the length of a step in seconds, which the size of a batch is chosen for.
KINDS = {"0.3ms": (160, 0.0003), "1.4ms": (320, 0.0014), "10ms": (768, 0.010)}
BLOCKS = 40
BATCHES = 16


class Batches(torch.utils.data.Dataset):
    def __init__(self, width: int, size: int):
        self.made = [(torch.randn(size, width), torch.randn(size, 1)) for _ in range(BATCHES)]
        self.steps = 0

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        return self.made[index % BATCHES]


class Loop:
    """One model and its blocks."""

    def __init__(self, kind: str, size: int):
        width = KINDS[kind][0]
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.batches = Batches(width, size)
        self.model = nn.Sequential(
            *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def loader(self, steps: int):
        self.batches.steps = steps
        return torch.utils.data.DataLoader(self.batches, batch_size=None)

    def bare(self, steps: int) -> list[float]:
        model, optimizer, moments = self.model, self.optimizer, []
        for inputs, targets in self.loader(steps):
            moments.append(perf_counter())
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        return moments

    again = bare

    def auto(self, steps: int) -> list[float]:
        import goodput.auto

        goodput.auto.install()
        try:
            return self.bare(steps)
        finally:
            goodput.auto.remove()

    def hand(self, steps: int) -> list[float]:
        import goodput

        model, optimizer, moments = self.model, self.optimizer, []
        forward, backward, update = (goodput.phase(name) for name in ("forward", "backward", "optimizer"))
        for inputs, targets in goodput.steps(self.loader(steps)):
            moments.append(perf_counter())
            with update:
                optimizer.zero_grad()
            with forward:
                loss = nn.functional.mse_loss(model(inputs), targets)
            with backward:
                loss.backward()
            with update:
                optimizer.step()
        return moments

    def traceml(self, steps: int) -> list[float]:
        import traceml_ai

        model, optimizer, moments = self.model, self.optimizer, []
        for inputs, targets in self.loader(steps):
            moments.append(perf_counter())
            with traceml_ai.trace_step(model):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
        return moments

    def block(self, mode: str, steps: int, settling: int) -> list[float]:
        moments = getattr(self, mode)(steps + settling)[settling:]
        return [1e6 * (after - before) for before, after in pairwise(moments)]


def size_of(kind: str) -> int:
    """The size of a batch whose step takes as long as the kind says, by the fastest quarter of some steps."""
    size = 64
    for _ in range(4):
        lengths = sorted(Loop(kind, size).block("bare", max(round(0.5 / KINDS[kind][1]), 40), 20))
        size = max(round(size * KINDS[kind][1] * 1e6 / lengths[len(lengths) // 4]), 1)
    return size


def main() -> None:
    kind, *rest = sys.argv[1:]
    if not rest:
        print(size_of(kind))
        return
    size, seconds, *modes = rest
    loop = Loop(kind, int(size))
    moments = loop.bare(50)
    step_seconds = (moments[-1] - moments[10]) / 39
    # Five times 64 steps are what the budget judges by, and it matters for short steps alone.
    settling = {"auto": 400 if step_seconds < 0.003 else 20}
    steps = max(round(float(seconds) / BLOCKS / step_seconds), 10)
    found: dict[str, list[list[float]]] = {mode: [] for mode in modes}
    for turn in range(len(modes) * BLOCKS):
        # Every mode as often in every place.
        mode = modes[(turn + turn // len(modes)) % len(modes)]
        found[mode].append(loop.block(mode, steps, settling.get(mode, 20)))
    with open(os.environ["BENCH_OUTPUT"], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
