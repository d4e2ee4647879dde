"""Evaluations in every form, and eval mode that is no evaluation."""

import time

import torch
from support.frameworks.scripts.loop_variants.cases import (
    PAUSE_SECONDS,
    Slow,
    batches,
    case,
    one_step,
    pause,
    sgd,
    train,
)


def predict(model, loader) -> None:
    for x, _y in loader:
        model(x)
        pause()


def evaluated(evaluate, model=None) -> dict:
    """Two epochs, each with an evaluation at its end."""
    model = Slow() if model is None else model
    optimizer, steps, seconds = sgd(model), 0, 0.0
    loader, held_out = batches(), batches(12)
    for _ in range(2):
        steps += train(model, optimizer, loader)
        began = time.perf_counter()
        evaluate(model, held_out)
        seconds += time.perf_counter() - began
    return {"steps": steps, "evaluation_seconds": seconds}


@case
def evaluation_by_eval_and_no_grad():
    def evaluate(model, loader):
        model.eval()
        with torch.no_grad():
            predict(model, loader)
        model.train()

    return evaluated(evaluate)


@case
def evaluation_by_no_grad_and_another_loader():
    def evaluate(model, loader):
        with torch.no_grad():
            predict(model, loader)

    return evaluated(evaluate)


@case
def evaluation_by_inference_mode():
    def evaluate(model, loader):
        with torch.inference_mode():
            predict(model, loader)

    return evaluated(evaluate)


@case
def evaluation_without_a_loader():
    def evaluate(model, _loader):
        model.eval()
        with torch.no_grad():
            predict(model, [(torch.randn(4, 8), None)] * 3)
        model.train()

    return evaluated(evaluate)


@case
def evaluation_of_an_average():
    """The model that is evaluated, and called under eval(), is a copy of the one that is trained."""
    model = Slow()
    average = torch.optim.swa_utils.AveragedModel(model)

    def evaluate(_model, loader):
        average.update_parameters(model)
        average.eval()
        with torch.no_grad():
            predict(average, loader)

    return evaluated(evaluate, model)


@case
def evaluation_inside_an_epoch():
    model = Slow()
    optimizer, seconds, steps = sgd(model), 0.0, 0
    held_out = batches(8)
    for number, (x, y) in enumerate(batches(32)):
        one_step(model, optimizer, x, y)
        steps += 1
        if number % 3 == 2:
            began = time.perf_counter()
            model.eval()
            with torch.no_grad():
                predict(model, held_out)
            model.train()
            seconds += time.perf_counter() - began
    return {"steps": steps, "evaluation_seconds": seconds}


@case
def a_teacher_inside_the_step():
    teacher, model = Slow().eval(), Slow()
    optimizer, steps = sgd(model), 0
    for x, _y in batches():
        with torch.no_grad():
            target = teacher(x)
        one_step(model, optimizer, x, target)
        steps += 1
    return {"steps": steps, "evaluation_seconds": 0, "least": {"forward": 2 * steps * PAUSE_SECONDS / 4}}


@case
def gradients_in_eval_mode():
    """Training with frozen batch norm: the model is always in eval mode."""
    model = Slow().eval()
    return {"steps": train(model), "evaluation_seconds": 0}


@case
def eval_mode_between_steps():
    """`model.eval()` and `.train()` at each step with gradients on, as in reinforcement learning."""
    model = Slow()
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        model.eval()
        model.train()
        one_step(model, optimizer, x, y)
        steps += 1
    return {"steps": steps}
