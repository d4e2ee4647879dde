"""Loaders while the overhead budget lets steps rest, for test_loaders_at_rest.py: argv is the directory."""

import time

import framework_runs as runs
import torch

import goodput
import goodput.auto

QUICK, SLOW, SLOW_SECONDS = 1500, 40, 0.02
ROWS = [(torch.randn(4), torch.randn(1)) for _ in range(8)]


class Planted(torch.utils.data.Dataset):
    """QUICK rows, then SLOW ones that sleep; every 300th of the quick ones sleeps, too."""

    def __init__(self):
        self.slept_seconds = 0.0

    def __len__(self):
        return QUICK + SLOW

    def __getitem__(self, index):
        if index >= QUICK or index % 300 == 299:
            began = time.perf_counter()
            time.sleep(SLOW_SECONDS)
            self.slept_seconds += time.perf_counter() - began
        return ROWS[index % len(ROWS)]


class Nested(torch.utils.data.Dataset):
    """Each row is the sum of a loader's."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        total = sum(x.sum() for x, _ in torch.utils.data.DataLoader(ROWS, 2))
        return torch.full((4,), float(total)), ROWS[0][1]


def step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    goodput.start(run="resting")
    planted, waited = Planted(), 0.0
    iterator = iter(torch.utils.data.DataLoader(planted, 1))
    while True:
        began = time.perf_counter()
        batch = next(iterator, None)
        waited += time.perf_counter() - began
        if batch is None:
            break
        step(model, optimizer, batch)
    goodput.stop()
    goodput.start(run="nested")
    for batch in torch.utils.data.DataLoader(Nested(), 3):
        step(model, optimizer, batch)
    goodput.stop()
    goodput.start(run="by turns")
    first, second = (torch.utils.data.DataLoader(ROWS, 2) for _ in range(2))
    for _ in range(4):
        for each in (first, second):
            for batch in each:
                step(model, optimizer, batch)
    goodput.stop()
    runs.tell(waited=waited, slept=planted.slept_seconds, steps=len(planted))


if __name__ == "__main__":
    main()
