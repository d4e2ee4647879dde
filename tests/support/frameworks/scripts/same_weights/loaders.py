"""Loops over nested, shared and subclassed DataLoaders."""

import torch
from support.frameworks.scripts.same_weights.cases import adam, case, data, loop, loss_of, net, weights
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


@case(steps=16)
def persistent_workers():
    model = net()
    optimizer = adam(model)
    loader = DataLoader(data(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(2):
        loop(model, optimizer, loader)
    return weights(model)


@case(steps=4)
def a_loader_inside_the_loop_of_another():
    model = net()
    optimizer = adam(model)
    inner = DataLoader(data(8), batch_size=4, shuffle=True)
    for x, y in DataLoader(data(16), batch_size=4, shuffle=True):
        loss = loss_of(model, x, y)
        for a, b in inner:
            loss = loss + loss_of(model, a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weights(model)


@case(steps=8)
def two_iterators_of_one_loader():
    model = net()
    optimizer = adam(model)
    loader = DataLoader(data(), batch_size=4, shuffle=True)
    for (x, y), (a, b) in zip(loader, loader, strict=True):
        loss = loss_of(model, x, y) + loss_of(model, a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weights(model)


class OfAnother(IterableDataset):
    def __init__(self):
        self.loader = DataLoader(data(), batch_size=2, shuffle=True)

    def __iter__(self):
        for x, y in self.loader:
            yield x.sum(0), y.sum(0)


@case(steps=4)
def a_loader_inside_a_dataset():
    model = net()
    loop(model, adam(model), DataLoader(OfAnother(), batch_size=4))
    return weights(model)


class OwnLoader(DataLoader):
    """A loader with its own __iter__, as many frameworks have one."""

    def __iter__(self):
        for batch in super().__iter__():
            yield [values * 2 for values in batch]


@case(steps=8)
def a_loader_of_ones_own():
    model = net()
    loop(model, adam(model), OwnLoader(data(), batch_size=4))
    return weights(model)


class ModelInDataset(Dataset):
    """A dataset that calls a model, in the loader's own process."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 16

    def __getitem__(self, index):
        with torch.no_grad():
            return torch.full((8,), 0.1 * index) + self.model(torch.ones(1, 8))[0], torch.ones(1)


@case(steps=4)
def a_model_inside_a_dataset():
    model, other = net(), nn.Linear(8, 8)
    loop(model, adam(model), DataLoader(ModelInDataset(other), batch_size=4))
    return weights(model, other)
