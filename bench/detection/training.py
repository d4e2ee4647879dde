"""A training of the detection score: real DistributedDataParallel over gloo in several processes, made from a seed.

Its ranks share few cores, so they compute little: most of a step is waiting as for a device, `device_seconds` in the
forward and in the backward pass of each micro-batch. A fault is time that one rank sleeps in each step, in one place:

loader         while the dataset makes a batch
forward        in the model's forward
backward       in a function of autograd
optimizer      in the optimizer's step
communication  inside the process group's all-reduce, between its entry and its return: of the first bucket of gradients, or
               of the mean of the loss where the training takes one by hand
outside        between steps, in no phase
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

PLACES = ("loader", "forward", "backward", "optimizer", "communication", "outside")
LENGTH = 8  # of a sample's sequence


@dataclass(frozen=True)
class Case:
    """One training. `seconds` is what the fault adds to each step of `culprit`; None for one without a fault."""

    seed: int
    place: str | None
    culprit: int | None
    seconds: float
    world: int
    kind: str
    width: int
    depth: int
    batch: int
    steps: int
    device_seconds: float
    buckets_mb: float
    accumulation: int
    mean_loss: bool


def case_of(seed: int, has_fault: bool) -> Case:
    chosen = random.Random(f"detection {seed} {has_fault}")
    world = chosen.choice((2, 3, 4))
    return Case(
        seed=seed,
        place=PLACES[seed % len(PLACES)] if has_fault else None,
        culprit=chosen.randrange(world) if has_fault else None,
        seconds=chosen.choice((0.08, 0.12, 0.2, 0.3)) if has_fault else 0.0,
        world=world,
        kind=chosen.choice(("linear", "convolution", "attention")),
        width=chosen.choice((32, 64, 96)),
        depth=chosen.choice((2, 4, 6)),
        batch=chosen.choice((4, 8)),
        steps=chosen.choice((20, 24)),
        device_seconds=chosen.choice((0.15, 0.25, 0.35)),
        buckets_mb=chosen.choice((0.05, 25.0)),
        accumulation=chosen.choice((1, 1, 2)),
        mean_loss=chosen.choice((False, True)),
    )


class Fault:
    """Sleeps once a step where the case says, if this rank is the culprit."""

    def __init__(self, case: Case, rank: int):
        self.place = case.place if rank == case.culprit else None
        self.seconds, self.is_due = case.seconds, True

    def at(self, place: str) -> None:
        if place == self.place and self.is_due:
            self.is_due = False
            time.sleep(self.seconds)

    def next_step(self) -> None:
        self.is_due = True


def delay_collectives(case: Case, fault: Fault) -> Callable[[str], None]:
    """Let all-reduces pass the fault inside the process group's call. Returns what announces the next one.

    To be called before goodput is imported, so that it is inside of what goodput records as the call.
    """
    from torch.distributed import ProcessGroup

    original, due = ProcessGroup.allreduce, ["bucket"]
    wanted = "mean" if case.mean_loss else "bucket"

    def allreduce(self, *args):
        if due[0] == wanted:
            fault.at("communication")
        return original(self, *args)

    def announce(what: str) -> None:
        due[0] = what

    ProcessGroup.allreduce = cast(Any, allreduce)
    return announce


def batches_of(case: Case, fault: Fault):
    """A DataLoader of the case."""
    import torch

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return case.batch * case.steps * case.accumulation

        def __getitem__(self, at):
            if at % case.batch == 0:
                fault.at("loader")
            return torch.full((LENGTH, case.width), at % 7 / 7.0)

    return torch.utils.data.DataLoader(Data(), batch_size=case.batch)


def layer_of(case: Case):
    from torch import nn

    if case.kind == "attention":
        return nn.TransformerEncoderLayer(case.width, 4, 2 * case.width, dropout=0.0, batch_first=True)
    if case.kind == "convolution":
        return nn.Conv1d(LENGTH, LENGTH, 5, padding=2)
    return nn.Linear(case.width, case.width)


def model_of(case: Case, fault: Fault):
    import torch
    from torch import nn

    class DeviceWait(torch.autograd.Function):
        """What a device would compute: the host waits for it in both passes."""

        @staticmethod
        def forward(ctx, values):
            time.sleep(case.device_seconds)
            return values.view_as(values)

        @staticmethod
        def backward(ctx, gradient):
            fault.at("backward")
            time.sleep(case.device_seconds)
            return gradient

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(layer_of(case) for _ in range(case.depth))

        def forward(self, values):
            fault.at("forward")
            for at, layer in enumerate(self.layers):
                values = torch.relu(layer(values))
                values = DeviceWait.apply(values) if at == 0 else values
            return values.square().mean()

    return Model()


def train(case: Case, rank: int, directory: Path) -> None:
    """Be one rank. Leaves its rank page, and in `scheduled.RANK` what `scheduled_ns` rose by in a step,
    of those after the first, which the account compares no ranks by."""
    import torch
    import torch.distributed as dist
    from torch import nn

    fault = Fault(case, rank)
    announce = delay_collectives(case, fault)
    import goodput.auto

    torch.set_num_threads(1)
    torch.manual_seed(case.seed)
    goodput.start(run="score", rank=rank, world_size=case.world, directory=str(directory / "pages"))
    store = dist.FileStore(str(directory / "store"), case.world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.world)

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            fault.at("optimizer")
            return super().step(closure)

    model = nn.parallel.DistributedDataParallel(model_of(case, fault), bucket_cap_mb=case.buckets_mb)
    optimizer = Optimizer(model.parameters(), 0.01)
    before = None
    for micro, batch in enumerate(batches_of(case, fault), 1):
        if micro % case.accumulation:
            with model.no_sync():
                model(batch).backward()
            continue
        announce("bucket")
        loss = model(batch)
        loss.backward()
        if case.mean_loss:
            announce("mean")
            dist.all_reduce(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        fault.at("outside")
        fault.next_step()
        before = before or scheduled_ns()
    assert before is not None
    spent = [(now - then) / (case.steps - 1) for now, then in zip(scheduled_ns(), before, strict=True)]
    (directory / f"scheduled.{rank}").write_text(json.dumps(spent))
    announce("bucket")
    dist.barrier()


def scheduled_ns() -> tuple[int, int]:
    """How long this thread has been running, and how long it was ready to run and waited for a core."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(ran), int(waited)
