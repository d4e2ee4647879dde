"""Trainings on a GPU with goodput.auto, each with one planted delay or none, for test_gpu_training.py.

argv is the file to write and the names of the cases. The JSON has, for each, the seconds of the device by phase and
step, by events of the script's own and by goodput's device clock; the account; and hashes of the weights, with
goodput.auto and without it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time

os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # Products of matrices have the same bits each time.

import torch
from support.frameworks.script_helpers import digest
from support.sdk.device import split
from torch import nn
from torch.utils.data import DataLoader, Dataset

import goodput.auto
from goodput.rank_page.reader import Reader

STEPS, SKIPPED = int(os.environ.get("STEPS", "60")), 5
WIDTH, BATCH, LAYERS = 4096, 4096, 6
WAIT_SECONDS = 0.05
COPIED_BYTES = 256 << 20


class Samples(Dataset):
    """Batches of BATCH rows that take `seconds` to make."""

    def __init__(self, seconds: float = 0.0):
        self.seconds, self.made = seconds, torch.randn(BATCH, WIDTH, dtype=torch.bfloat16)

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.made


class WithLoss(nn.Sequential):
    """Layers and their loss, so that all that a step computes is in its phases."""

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return super().forward(x).float().square().mean()


class Stopwatch:
    """CUDA events at the boundaries of phases, on the current stream."""

    def __init__(self):
        self.marks: list[tuple[str, torch.cuda.Event]] = []

    def mark(self, name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.marks.append((name, event))

    def seconds(self) -> dict[str, float]:
        """By phase, without the first steps."""
        torch.cuda.synchronize()
        heads = [at for at, (name, _) in enumerate(self.marks) if name == "loader"]
        found: dict[str, float] = {}
        for at in range(heads[SKIPPED + 1], heads[-1]):
            name, begin = self.marks[at]
            found[name] = found.get(name, 0.0) + begin.elapsed_time(self.marks[at + 1][1]) / 1e3
        return found


def train(net, batches, copy=None, after=lambda number, loss: None) -> Stopwatch:
    optimizer, watch = torch.optim.SGD(net.parameters(), lr=1e-3), Stopwatch()
    batches, number = iter(batches), 0
    while True:
        watch.mark("loader")
        batch = next(batches, None)
        if batch is None:
            return watch
        watch.mark("h2d")
        batch = batch.to("cuda", non_blocking=True)
        if copy is not None:
            copy.to("cuda", non_blocking=True)
        watch.mark("forward")
        loss = net(batch)
        watch.mark("backward")
        loss.backward()
        watch.mark("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        watch.mark("after")
        after(number, loss)
        number += 1


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    return WithLoss(*layers).cuda()


def loader(seconds: float = 0.0, pinned: bool = True, workers: int = 1) -> DataLoader:
    return DataLoader(Samples(seconds), batch_size=None, pin_memory=pinned, num_workers=workers)


def clean(net) -> Stopwatch:
    return train(net, loader())


def slow_loader(net) -> Stopwatch:
    return train(net, loader(WAIT_SECONDS, workers=0))


def large_copies(net) -> Stopwatch:
    return train(net, loader(), copy=torch.ones(COPIED_BYTES, dtype=torch.uint8).pin_memory())


def item_each_step(net) -> Stopwatch:
    """The host waits for the device in each step, and is slow then, so that the device waits for it."""

    def after(number, loss):
        loss.item()
        time.sleep(WAIT_SECONDS)

    return train(net, loader(), after=after)


def checkpoints(net) -> Stopwatch:
    def after(number, loss):
        if number % 10 == 9:
            torch.save(net.state_dict(), os.path.join(os.path.dirname(sys.argv[1]), "saved.pt"))

    return train(net, loader(), after=after)


def cuda_graphs(net) -> Stopwatch:
    return train(torch.compile(net, mode="reduce-overhead"), loader())


def by_page(path: str) -> tuple[dict[str, float], str]:
    """Seconds of the device by phase, without the first steps; and the device clock's state."""
    with Reader(path) as reader:
        snapshot = reader.snapshot()
    steps = [record for record in snapshot.steps if record.step >= SKIPPED]
    found: dict[str, float] = {}
    for before, record in itertools.pairwise(steps):
        for name, ns in split(record, before).items():
            found[name] = found.get(name, 0.0) + ns / 1e9
    return found, snapshot.device_state


def main() -> None:
    torch.use_deterministic_algorithms(True)
    goodput.start(run="warm-up")
    train(model(), loader())
    goodput.stop()
    found = {}
    for name in sys.argv[2:]:
        case = globals()[name]
        goodput.auto.remove()
        net = model()
        case(net)
        bare = digest(net)
        goodput.auto.install()
        goodput.start(run=name)
        net = model()
        watch = case(net)
        account, path = goodput.report().account, goodput._session.writer.path
        phases, state = by_page(path)
        found[name] = {
            "watch": watch.seconds(),
            "page": phases,
            "device_state": state,
            "account": account,
            "same": digest(net) == bare,
        }
        goodput.stop()
        del net, watch
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
