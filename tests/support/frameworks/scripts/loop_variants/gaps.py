"""Time in no phase between forward passes, backward passes and the optimizer: what joins them, and what does not."""

import time

import torch
from support.frameworks.scripts.loop_variants.cases import Slow, batches, case, sgd
from torch import nn

FORWARD_SECONDS = 0.004


class Timed(nn.Module):
    """A slow model. `seconds` is what its calls took."""

    def __init__(self, inputs=8, outputs=1, call_seconds=FORWARD_SECONDS):
        super().__init__()
        self.layer, self.seconds, self.call_seconds = nn.Linear(inputs, outputs), 0.0, call_seconds

    def forward(self, x):
        began = time.perf_counter()
        time.sleep(self.call_seconds)
        result = self.layer(x)
        self.seconds += time.perf_counter() - began
        return result


def elapsed(seconds: float) -> float:
    began = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - began


class SlowGradient(torch.autograd.Function):
    """The identity, with a backward pass that takes 0.05 s."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(0.05)
        return gradient


def play(environment_seconds: float, updates=4, acts=12) -> dict:
    """Policy gradients: forward passes with gradients and an environment take turns, before one backward pass."""
    policy = Timed(8, 3)
    optimizer, environment = sgd(policy), 0.0
    for _ in range(updates):
        logs, x = [], torch.randn(8)
        for _ in range(acts):
            actions = torch.distributions.Categorical(logits=policy(x))
            logs.append(actions.log_prob(actions.sample()))
            environment += elapsed(environment_seconds)
            x = torch.randn(8)
        loss = -SlowGradient.apply(torch.stack(logs).sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {
        "steps": updates,
        "evaluation_seconds": 0,
        "least": {"none": environment, "forward": policy.seconds},
        # One pause for each backward pass may be the loss.
        "most": {"forward": policy.seconds + updates * environment_seconds},
    }


@case
def an_environment_slower_than_the_model():
    return play(2 * FORWARD_SECONDS)


@case
def an_environment_faster_than_the_model():
    """Each pause is shorter than a forward pass, and all together are not."""
    return play(FORWARD_SECONDS / 2)


@case
def two_models_and_a_loss():
    """Code that joins models, and a loss longer than a forward pass, are compute."""
    encoder, decoder = Timed(8, 8, 0.02), Timed(8, 1, 0.02)
    optimizer, joined, losses, steps = sgd(nn.ModuleList([encoder, decoder])), 0.0, 0.0, 0
    for x, y in batches():
        code = encoder(x)
        # In the first step models are examined, and the loss has no backward pass before it.
        joined += elapsed(0.001) if steps else 0
        code = decoder(code)
        loss = nn.functional.mse_loss(SlowGradient.apply(code), y)
        losses += elapsed(0.025) if steps else 0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return {"steps": steps, "least": {"forward": encoder.seconds + decoder.seconds + joined + losses}}


@case
def slow_batches_between_accumulated_passes():
    """What is prepared in the loop before each forward pass is no compute, whether or not a backward pass came before."""
    model = Slow()
    optimizer, prepared = sgd(model), 0.0
    for number, (x, y) in enumerate(batches(64)):
        prepared += elapsed(FORWARD_SECONDS)
        loss = nn.functional.mse_loss(model(x), y)
        for _ in range(3):
            prepared += elapsed(FORWARD_SECONDS / 2)
            loss = loss + nn.functional.mse_loss(model(x), y)
        loss.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return {"steps": 8, "least": {"none": prepared}}


@case
def pauses_before_the_optimizer():
    """Each pause is shorter than the backward pass, and all together are not."""
    model = Slow()
    optimizer, pauses, steps = sgd(model), 0.0, 0
    for x, y in batches():
        loss = nn.functional.mse_loss(SlowGradient.apply(model(x)), y)
        optimizer.zero_grad()
        loss.backward()
        for _ in range(6):
            pauses += elapsed(0.02)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return {"steps": steps, "least": {"none": pauses * 4 / 6, "optimizer": pauses / 6}}
