"""Loops that clear or change gradients and parameters before the first step of an optimizer, or whose step calls no hook."""

import functools
import logging
import warnings

import torch
from support.frameworks.scripts.loop_variants.cases import Slow, case, data, one_step, sgd
from torch import nn


def compiles(function):
    """A loop in which PyTorch's own compiler may warn and log."""

    @functools.wraps(function)
    def call():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch._logging.set_logs(all=logging.ERROR)
            return function()

    return call


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


@case
def discarded_gradients():
    """The first gradients are not used, as where they are not finite."""
    model = Slow()
    optimizer, (x, y) = sgd(model), data(4).tensors
    for number in range(6):
        if number < 3:
            loss_of(model, x, y).backward()
            optimizer.zero_grad()
        else:
            one_step(model, optimizer, x, y)
    return {"steps": 3}


@case
def gradients_of_several_tasks():
    """As PCGrad: each task's gradient is copied and cleared, and the step uses a combination."""
    model = Slow()
    optimizer, (x, y) = sgd(model), data(4).tensors
    for _ in range(3):
        gradients = []
        for weight in (1, 2, 3):
            optimizer.zero_grad()
            (weight * loss_of(model, x, y)).backward()
            gradients.append([each.grad.clone() for each in model.parameters()])
        optimizer.zero_grad()
        for parameter, *each in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = sum(each)
        optimizer.step()
    return {"steps": 3}


class SharpnessAware(torch.optim.Optimizer):
    """Moves the parameters uphill and back, and shares its groups with the optimizer that steps.

    With `is_whole` it descends itself, so that the step of no optimizer is called.
    """

    def __init__(self, parameters, is_whole=False):
        super().__init__(parameters, {"lr": 0.01})
        self.base, self.is_whole = torch.optim.SGD(self.param_groups, lr=0.01), is_whole
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                moved = 0.05 * parameter.grad
                parameter.add_(moved)
                self.state[parameter]["moved"] = moved
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.state[parameter]["moved"])
                if self.is_whole:
                    parameter.sub_(0.01 * parameter.grad)
        if not self.is_whole:
            self.base.step()
        self.zero_grad()


@case
def sharpness_aware():
    """20 steps, more than those after which another optimizer becomes the anchor."""
    model = nn.Linear(8, 1)
    optimizer, (x, y) = SharpnessAware(model.parameters()), data(4).tensors
    for _ in range(20):
        loss_of(model, x, y).backward()
        optimizer.first_step()
        loss_of(model, x, y).backward()
        optimizer.second_step()
    return {"steps": 20}


@case
@compiles
def sharpness_aware_of_a_compiled_model():
    model = nn.Linear(8, 1)
    fast, (x, y) = torch.compile(model, backend="eager"), data(4).tensors
    optimizer = SharpnessAware(model.parameters())
    for _ in range(3):
        loss_of(fast, x, y).backward()
        optimizer.first_step()
        loss_of(fast, x, y).backward()
        optimizer.second_step()
    return {"steps": 3}


@case
def accumulated_gradients_that_are_cleared_first():
    model = Slow()
    optimizer, (x, y) = sgd(model), data(4).tensors
    for number in range(8):
        if number % 2 == 0:
            optimizer.zero_grad()
        loss_of(model, x, y).backward()
        if number % 2:
            optimizer.step()
    return {"steps": 4}


@case
def generator_and_discriminator():
    """One optimizer clears gradients that the other's pass has left."""
    first, second = Slow(), Slow()
    of_first, of_second, (x, y) = sgd(first), sgd(second), data(4).tensors
    for _ in range(3):
        (loss_of(first, x, y) + loss_of(second, x, y)).backward()
        of_second.zero_grad()
        of_first.step()
        of_first.zero_grad()
        loss_of(second, x, y).backward()
        of_second.step()
        of_second.zero_grad()
    return {"steps": 3}


@case
def update_without_a_hook():
    """An optimizer only clears the gradients; the parameters are updated beside it."""
    model = Slow()
    optimizer, (x, y) = sgd(model), data(4).tensors
    for _ in range(6):
        loss_of(model, x, y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        optimizer.zero_grad()
    return {"steps": 6}


@case
def few_updates_without_a_hook():
    """Too few steps to know without doubt that there is no other optimizer; the evaluation confirms them."""
    model = Slow()
    optimizer, (x, y) = sgd(model), data(4).tensors
    for _ in range(2):
        loss_of(model, x, y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        optimizer.zero_grad()
    with torch.no_grad():
        model(x)
    return {"steps": 2}


def compiled(discarded: int = 0, passes: int = 1) -> int:
    """Train with a compiled step of the optimizer, after some discarded gradients; each step has several passes."""
    model = nn.Linear(8, 1)
    optimizer, (x, y) = sgd(model), data(4).tensors
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(discarded):
        loss_of(model, x, y).backward()
        optimizer.zero_grad()
    for _ in range(6):
        for _ in range(passes):
            loss_of(model, x, y).backward()
        step()
        optimizer.zero_grad()
    return 6


@case
@compiles
def compiled_steps_after_discarded_gradients():
    return {"steps": compiled(discarded=2)}


@case
@compiles
def compiled_steps_with_accumulated_gradients():
    return {"steps": compiled(passes=2)}


@case
@compiles
def two_compiled_optimizers():
    first, second = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizers, (x, y) = (sgd(first), sgd(second)), data(4).tensors
    steps = [torch.compile(lambda each=each: each.step(), backend="eager") for each in optimizers]
    for _ in range(6):
        for model, optimizer, step in zip((first, second), optimizers, steps, strict=True):
            loss_of(model, x, y).backward()
            step()
            optimizer.zero_grad()
    return {"steps": 6}
