"""The registry of trainings, and the models and loops that they share."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CASES = {}


def case(steps: int):
    """Register a training; it does this many steps and returns its weights and other results as a list."""

    def add(function):
        CASES[function.__name__] = (function, steps)
        return function

    return add


def net(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(width, 1))


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


class Net(nn.Sequential):
    """Has a forward of its own file, since Dynamo skips frames of torch's files."""

    def forward(self, x):
        return super().forward(x)


def net_without_dropout() -> nn.Module:
    return Net(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def data(rows: int = 32) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randn(rows, 8, generator=generator), torch.randn(rows, 1, generator=generator))


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def weights(*models) -> list[bytes]:
    """Parameters, buffers and gradients, byte for byte."""
    found = []
    for model in models:
        for values in (*model.parameters(), *model.buffers()):
            found.append(values.detach().numpy().tobytes())
            grad = getattr(values, "grad", None)
            found.append(b"" if grad is None else grad.numpy().tobytes())
    return found


def adam(model, **others):
    return torch.optim.Adam(model.parameters(), lr=0.01, **others)


def loop(model, optimizer, batches, loss=loss_of) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()


def trained(model=None):
    model = net_without_dropout() if model is None else model
    loop(model, adam(model), DataLoader(data(), batch_size=4))
    return model
