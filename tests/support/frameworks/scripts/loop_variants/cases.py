"""The registry of loops, and the model and steps that they share."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CASES = {}
PAUSE_SECONDS = 0.01


def case(function):
    """Register a loop. It returns what the page must show: `steps`, and optionally `steps_off` (tolerance),
    `evaluation_seconds`, `rollout_seconds`, `rollout_off` (tolerance), `least` and `most` (seconds by phase) and `events`.
    """
    CASES[function.__name__] = function
    return function


class Slow(nn.Module):
    """A slow model that raises in the calls of `fails`."""

    def __init__(self, fails=()):
        super().__init__()
        self.layer, self.fails, self.calls = nn.Linear(8, 1), fails, 0

    def forward(self, x):
        self.calls += 1
        time.sleep(PAUSE_SECONDS / 4)
        if self.calls in self.fails:
            raise RuntimeError("out of memory")
        return self.layer(x)


def data(rows: int = 16) -> TensorDataset:
    return TensorDataset(torch.randn(rows, 8), torch.randn(rows, 1))


def batches(rows: int = 16, **others) -> DataLoader:
    return DataLoader(data(rows), batch_size=4, **others)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def one_step(model, optimizer, x, y) -> None:
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(model=None, optimizer=None, loader=None) -> int:
    model = Slow() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    steps = 0
    for x, y in batches() if loader is None else loader:
        one_step(model, optimizer, x, y)
        steps += 1
    return steps


def pause(times: int = 1) -> float:
    began = time.perf_counter()
    time.sleep(times * PAUSE_SECONDS)
    return time.perf_counter() - began
