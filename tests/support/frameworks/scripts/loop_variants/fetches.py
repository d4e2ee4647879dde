"""Modules that are called while a batch is fetched, or in a phase of other work, and are no part of the training."""

import time
import warnings

import torch
from support.frameworks.scripts.loop_variants.cases import (
    PAUSE_SECONDS,
    Slow,
    batches,
    case,
    data,
    one_step,
    pause,
    sgd,
)
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import goodput

# Above what one call of the model takes, below a call and one of a transform.
STEP_FORWARD_SECONDS = PAUSE_SECONDS


class Transform(nn.Module):
    """A slow transform, as those of torchvision are modules. `seconds` is what its calls took."""

    def __init__(self):
        super().__init__()
        self.seconds, self.scale = 0.0, nn.Parameter(torch.ones(1))

    def forward(self, x):
        self.seconds += pause()
        return x * self.scale.detach()


class Transformed(TensorDataset):
    """16 rows, each of which a module transforms."""

    def __init__(self, transform):
        super().__init__(*data().tensors)
        self.transform = transform

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return self.transform(x), y


def trained_on(loader, transform, model=None, epochs=2) -> dict:
    """Train on a loader whose fetches call a transform: their time is the loader's alone."""
    model = Slow() if model is None else model
    optimizer, steps = sgd(model), 0
    for _ in range(epochs):
        for x, y in loader:
            one_step(model, optimizer, x, y)
            steps += 1
    return {
        "steps": steps,
        "least": {"loader": transform.seconds, "forward": steps * PAUSE_SECONDS / 4},
        "most": {"forward": steps * STEP_FORWARD_SECONDS, "evaluation": 0},
    }


@case
def transforms_of_a_dataset():
    transform = Transform()
    return trained_on(DataLoader(Transformed(transform), batch_size=4), transform)


@case
def transforms_without_gradients():
    transform = Transform()

    @torch.no_grad()
    def without_gradients(x):
        return transform(x)

    return trained_on(DataLoader(Transformed(without_gradients), batch_size=4), transform)


@case
def transforms_in_collate():
    transform = Transform()

    def collate(rows):
        return tuple(transform(torch.stack(parts)) for parts in zip(*rows, strict=True))

    return trained_on(batches(collate_fn=collate), transform)


@case
def transforms_in_an_iterable_dataset():
    transform = Transform()

    class Rows(IterableDataset):
        def __iter__(self):
            transform(torch.ones(8))  # At the creation of the iterator.
            return ((transform(x), y) for x, y in data())

    return trained_on(DataLoader(Rows(), batch_size=4), transform)


@case
def samplers_that_embed():
    transform = Transform()

    class Sampler:
        def __len__(self):
            return 16

        def __iter__(self):
            yield from (int(transform(torch.ones(1))) * index for index in range(16))

    return trained_on(batches(sampler=Sampler()), transform)


@case
def scripted_transforms():
    transform = Transform()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    return trained_on(DataLoader(Transformed(lambda x: transform(scripted(x))), batch_size=4), transform)


@case
def a_model_that_also_transforms():
    """The dataset calls the model before the training does: it is the root module then, too."""
    model, spent = Slow(), Transform()

    def labelled(x):
        with torch.no_grad():
            spent(model(x))
        return x

    return trained_on(DataLoader(Transformed(labelled), batch_size=4), spent, model)


@case
def batches_made_by_training():
    """Adversarial rows: each fetch makes a forward pass, a backward pass and an optimizer's step of its own."""
    transform, attacked = Transform(), Slow()

    def adversarial(x):
        x = x.clone().requires_grad_()
        optimizer = torch.optim.SGD([x], lr=0.1)
        transform(attacked(x)).sum().backward(retain_graph=True)
        torch.autograd.grad(attacked(x).sum(), x)
        optimizer.step()
        optimizer.zero_grad()
        attacked.zero_grad()
        attacked.eval()
        attacked.train()
        return x.detach()

    return trained_on(DataLoader(Transformed(adversarial), batch_size=4), transform)


@case
def transforms_in_evaluations():
    """An evaluation with gradients on, whose dataset calls modules in training mode."""
    model, transform = Slow(), Transform()
    optimizer, steps, seconds = sgd(model), 0, 0.0
    loader = DataLoader(Transformed(transform), batch_size=4)
    held_out = DataLoader(Transformed(transform), batch_size=8)
    for _ in range(2):
        for x, y in loader:
            one_step(model, optimizer, x, y)
            steps += 1
        began = time.perf_counter()
        model.eval()
        for x, _ in held_out:
            model(x)
        model.train()
        seconds += time.perf_counter() - began
    return {
        "steps": steps,
        "evaluation_seconds": seconds,
        "most": {"forward": steps * STEP_FORWARD_SECONDS},
    }


@case
def calls_in_phases_of_other_work():
    """Calls with gradients on, in phases that the user has named: their time is that of the phase."""
    model, transform = Slow(), Transform()
    optimizer, steps, seconds = sgd(model), 0, {"loader": 0.0, "evaluation": 0.0, "h2d": 0.0, "augment": 0.0}
    for x, y in batches(32):
        for name in seconds:
            with goodput.phase(name, state="loader" if name == "augment" else None):
                began = time.perf_counter()
                (transform(x) * model(x)).sum().backward()
                optimizer.zero_grad()
                seconds[name] += time.perf_counter() - began
        one_step(model, optimizer, x, y)
        steps += 1
    return {
        "steps": steps,
        "least": seconds,
        "most": {"forward": steps * STEP_FORWARD_SECONDS, "backward": steps * STEP_FORWARD_SECONDS},
    }


@case
def calls_in_a_phase_without_a_state():
    """A phase of the user's that may hold anything: the training in it is training."""
    model = Slow()
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        with goodput.phase("anything"), goodput.phase("within"):
            one_step(model, optimizer, x, y)
        steps += 1
    return {"steps": steps, "least": {"forward": steps * PAUSE_SECONDS / 4}}


@case
def transforms_of_a_timed_iterable():
    transform, model = Transform(), Slow()
    made = ((transform(x), y) for x, y in batches())
    return trained_on(goodput.loader(made), transform, model, epochs=1)
