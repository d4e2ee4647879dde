"""Loops that raise or are interrupted in every part of a step."""

import gc
import signal
import sys
import time

import torch
from support.frameworks.scripts.loop_variants.cases import (
    Slow,
    batches,
    case,
    data,
    one_step,
    pause,
    sgd,
    train,
)
from torch import nn
from torch.utils.data import DataLoader, Dataset


def failing(act, fails=(2, 3)) -> dict:
    """Train, calling `act(number, model, optimizer, x, y)`, which may raise."""
    model = Slow()
    optimizer, steps = sgd(model), 0
    for number, (x, y) in enumerate(batches(24)):
        try:
            act(number in fails, model, optimizer, x, y)
            steps += 1
        except RuntimeError:
            optimizer.zero_grad()
    return {"steps": steps}


@case
def raised_in_forward():
    def act(fails, model, optimizer, x, y):
        model.fails = (model.calls + 1,) if fails else ()
        one_step(model, optimizer, x, y)

    return failing(act)


@case
def raised_in_backward():
    def act(fails, model, optimizer, x, y):
        def raises(grad):
            if fails:
                raise RuntimeError
            return grad

        handle = model.layer.weight.register_hook(raises)
        try:
            one_step(model, optimizer, x, y)
        finally:
            handle.remove()

    return failing(act)


@case
def raised_in_the_optimizer():
    class Fails(torch.optim.SGD):
        fails = False

        def step(self, closure=None):
            if self.fails:
                raise RuntimeError
            return super().step(closure)

    model = Slow()
    train()  # Afterwards SGD's own step has hooks, and that of a subclass calls them twice.
    optimizer, steps = Fails(model.parameters(), lr=0.1), 0
    gc.collect()
    for number, (x, y) in enumerate(batches(24)):
        optimizer.fails = number in (2, 3)
        try:
            one_step(model, optimizer, x, y)
            steps += 1
        except RuntimeError:
            optimizer.zero_grad()
    return {"steps": steps + 4}


@case
def raised_in_an_optimizer_that_is_replaced():
    """Without a loader the end of the first optimizer's step is not seen; its phase must not stay open."""

    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError

    model, (x, y) = Slow(), data(4).tensors
    try:
        one_step(model, Fails(model.parameters(), lr=0.1), x, y)
    except RuntimeError:
        pass
    gc.collect()
    optimizer, waited = sgd(model), 0.0
    for _ in range(4):
        one_step(model, optimizer, x, y)
        waited += pause()
    return {"steps": 4, "least": {"none": waited}}


@case
def retried_with_smaller_batches():
    model = Slow(fails=(2, 5))
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        try:
            one_step(model, optimizer, x, y)
        except RuntimeError:
            optimizer.zero_grad()
            for at in (0, 2):
                nn.functional.mse_loss(model(x[at : at + 2]), y[at : at + 2]).backward()
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
    return {"steps": steps}


class Failing(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 9:
            raise RuntimeError("no such sample")
        return torch.randn(8), torch.randn(1)


@case
def raised_in_a_worker():
    steps = 0
    model = Slow()
    optimizer = sgd(model)
    for workers in (1, 0):
        try:
            for x, y in DataLoader(Failing(), batch_size=4, num_workers=workers):
                one_step(model, optimizer, x, y)
                steps += 1
        except RuntimeError:
            pass
    return {"steps": steps + train(model, optimizer)}


@case
def interrupted_at_any_point():
    """Interrupts come at any point; each reaches the loop, and the totals still close."""
    return interrupted_by(KeyboardInterrupt)


@case
def timed_out_at_any_point():
    """A time limit raises an Exception, which our own code would otherwise swallow."""
    return interrupted_by(TimeoutError)


ROUNDS = 150


def interrupted_by(exception):
    model = nn.Linear(8, 1)
    optimizer = sgd(model)
    sent = caught = steps = 0

    def interrupt(_signal, _frame):
        nonlocal sent
        sent += 1
        raise exception

    old = signal.signal(signal.SIGALRM, interrupt)
    loader, (x, y) = batches(8), data(4).tensors
    optimizer.register_step_post_hook(lambda *_: count())

    def count():
        nonlocal steps
        steps += 1

    # Python drops what a handler raises inside a weak reference callback, for example torch's, and prints it.
    sys.unraisablehook, unraisablehook = lambda _: None, sys.unraisablehook
    for round_ in range(ROUNDS):
        try:
            signal.setitimer(signal.ITIMER_REAL, 50e-6 + 4e-6 * round_)
            until = time.perf_counter() + 0.5
            while time.perf_counter() < until:
                if round_ % 2:
                    for a, b in loader:
                        one_step(model, optimizer, a, b)
                    model.eval()
                    with torch.no_grad():
                        model(x)
                    model.train()
                one_step(model, optimizer, x, y)
        except exception:
            caught += 1
            torch.set_grad_enabled(True)  # torch's own context managers may have been interrupted.
    sys.unraisablehook = unraisablehook
    signal.signal(signal.SIGALRM, old)
    one_step(model, optimizer, x, y)
    # torch swallows some exceptions in its own code too.
    lost = 4 if exception is KeyboardInterrupt else 8
    assert sent == ROUNDS and caught >= ROUNDS - lost, (sent, caught)
    return {"steps": steps, "steps_off": ROUNDS // 10}
