"""Trainings on the CPU with goodput.auto, each with one planted delay, for test_planted_delays.py.

argv is the file to write and `PLANTED` the names of the delays. The JSON has, for each, the seconds planted, as the
script measured them, and the account.
"""

import ctypes
import gc
import itertools
import json
import os
import statistics
import sys
import time

import torch
import torch._dynamo  # So that its import is not part of a compilation.
from support.core_wait import CoreWait
from torch import nn
from torch.utils.data import DataLoader, Dataset

import goodput.auto

STEPS, DELAY_SECONDS, SAVE_SECONDS = 40, 0.02, 0.3
planted = 0.0


def measured(batches):
    """Batches; the wait for them is added to `planted`."""
    global planted
    batches = iter(batches)
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        planted += time.perf_counter() - began
        if batch is None:
            return
        yield batch


class Samples(Dataset):
    """Samples that take `seconds` each."""

    def __init__(self, seconds: float, count: int = STEPS):
        self.seconds, self.count = seconds, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.seconds:
            time.sleep(self.seconds)
        return torch.randn(64, 256)


class SlowState:
    """A value that takes long to pickle."""

    def __reduce__(self):
        time.sleep(SAVE_SECONDS)
        return (SlowState, ())


class WithLoss(nn.Sequential):
    """Layers and their loss, so that next to nothing of a step is outside its phases."""

    def forward(self, x):
        return super().forward(x).square().mean()


def model() -> nn.Module:
    """About 15 ms a step on one thread."""
    return WithLoss(nn.Linear(256, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 1))


def train(net, batches, after=lambda number: None) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number, x in enumerate(batches):
        for _ in range(2):
            loss = net(x.squeeze(0))
            loss.backward()
        optimizer.step()
        with goodput.phase("optimizer"):  # Automatic phases end at the step.
            optimizer.zero_grad()
        after(number)


class Ready(Dataset):
    """Samples that are ready, so that nothing waits for them."""

    sample = torch.randn(64, 256)

    def __len__(self):
        return 2 * STEPS  # So that what the first step sets up is a small part.

    def __getitem__(self, index):
        return self.sample


def clean() -> None:
    train(model(), DataLoader(Ready()))


def loader() -> None:
    train(model(), measured(DataLoader(Samples(DELAY_SECONDS))))


def worker() -> None:
    """Two workers that cannot keep up."""
    net, batches = model(), DataLoader(Samples(0.15), num_workers=2)
    train(net, measured(batches))


def checkpoint() -> None:
    net, path = model(), os.path.join(os.path.dirname(sys.argv[1]), "saved.pt")

    def after(number):
        global planted
        if number % 10 == 9:
            began = time.perf_counter()
            torch.save({"model": net.state_dict(), "slow": SlowState()}, path)
            planted += time.perf_counter() - began

    train(net, DataLoader(Samples(0)), after)


def compile() -> None:
    """A slow backend, at the first step and at the first of another shape; planted is their excess over the others."""
    global planted

    def backend(graph, _inputs):
        time.sleep(2 * SAVE_SECONDS)
        return graph.forward

    torch._dynamo.config.automatic_dynamic_shapes = False
    fast, batches = torch.compile(model(), backend=backend), list(DataLoader(Samples(0)))
    ends = [time.perf_counter()]
    shapes = [*batches[:20], *(x[:, :60] for x in batches[20:])]
    train(fast, shapes, lambda _number: ends.append(time.perf_counter()))
    steps = [end - begin for begin, end in itertools.pairwise(ends)]
    planted = steps[0] + steps[20] - 2 * statistics.median(steps)


def evaluation() -> None:
    net = model()

    def after(number):
        global planted
        if number % 10 == 9:
            began = time.perf_counter()
            net.eval()
            with torch.no_grad():
                for x in DataLoader(Samples(0, 10)):
                    net(x.squeeze(0))
                    time.sleep(DELAY_SECONDS)
            net.train()
            planted += time.perf_counter() - began

    train(net, DataLoader(Samples(0)), after)


def keep_freed_memory() -> None:
    """In half of all processes glibc gives memory back at every step, and at the next takes 1 to 2 ms for it."""
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD in malloc.h
    for parameter in (trim_threshold, mmap_threshold):
        ctypes.CDLL(None).mallopt(parameter, 1 << 30)


def warm_up() -> None:
    """A run of its own for what PyTorch imports in a process's first step: 20 ms and more, in no phase."""
    goodput.start(run="warm-up")
    train(model(), [torch.randn(64, 256)] * 2)
    goodput.stop()
    gc.collect()


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    warm_up()
    global planted
    found = {}
    for name in os.environ["PLANTED"].split():
        goodput.start(run=name)
        planted, waited = 0.0, CoreWait()
        globals()[name]()
        account = goodput.report().account
        found[name] = {"planted": planted, "account": account, "core_wait": waited.seconds()}
        goodput.stop()
        gc.collect()  # Until the optimizer is gone, its steps are those of the next training.
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
