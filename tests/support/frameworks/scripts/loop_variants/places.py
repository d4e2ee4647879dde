"""Loops in a fork, in executed text, in a generator, beside a thread, and with calls of the user to goodput."""

import copy
import gc
import io
import os
import threading

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
    train,
)

import goodput


@case
def forked():
    model = Slow()
    optimizer = sgd(model)
    train(model, optimizer)
    child = os.fork()
    if not child:
        status = 1
        try:
            train(model, optimizer)
            train()
            torch.save(model.state_dict(), io.BytesIO())
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    return {"steps": 4 + train(model, optimizer)}


@case
def executed_text():
    found = {"one_step": one_step, "Slow": Slow, "sgd": sgd, "batches": batches}
    exec(
        "model = Slow(); optimizer = sgd(model)\nfor x, y in batches(): one_step(model, optimizer, x, y)",
        found,
    )
    return {"steps": 4}


@case
def inside_a_class_and_a_generator():
    class Trainer:
        def __init__(self):
            self.model = Slow()
            self.optimizer = sgd(self.model)

        def losses(self):
            for x, _y in batches():
                loss = self.model(x).mean()
                loss.backward()
                self.optimizer.step()
                yield loss.item()

    return {"steps": len(list(Trainer().losses()))}


@case
def two_models_one_after_the_other():
    steps = train()
    gc.collect()
    return {"steps": steps + train()}


@case
def in_memory():
    model = Slow()
    optimizer, (x, y) = sgd(model), data(4).tensors
    for _ in range(5):
        one_step(model, optimizer, x, y)
    return {"steps": 5, "least": {"forward": 5 * PAUSE_SECONDS / 4}}


@case
def another_thread_evaluates_and_saves():
    """A thread that evaluates and saves at the same time is not part of the account."""
    model, done = Slow(), threading.Event()

    def background():
        other = Slow()
        while not done.is_set():
            with torch.no_grad():
                other(torch.randn(4, 8))
            torch.save(other.state_dict(), io.BytesIO())
            for _ in batches():
                pass

    thread = threading.Thread(target=background)
    thread.start()
    steps = train(model)
    done.set()
    thread.join()
    return {"steps": steps, "evaluation_seconds": 0}


@case
def steps_from_goodput_steps():
    """goodput.steps takes over the step boundaries."""
    model = Slow()
    optimizer = sgd(model)
    train(model, optimizer)
    steps = 0
    for x, y in goodput.steps(batches(8)):
        for _ in range(2):
            one_step(model, optimizer, x, y)
        steps += 1
    return {"steps": 4 + steps}


@case
def phases_named_by_the_user():
    """An open phase of the user hides no step."""
    model = Slow()
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        with goodput.phase("h2d"):
            pause()
        with goodput.phase("mine"):
            one_step(model, optimizer, x, y)
        steps += 1
    return {"steps": steps, "least": {"h2d": 4 * PAUSE_SECONDS}}


@case
def average_copied_at_every_step():
    """A moving average is kept by copying the model at every step."""
    model, average = Slow(), None
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        one_step(model, optimizer, x, y)
        average = copy.deepcopy(model).eval()
        steps += 1
    with torch.no_grad():
        average(x)
    return {"steps": steps}
