"""Trains without a DataLoader, for test_estimated_loader.py.

argv is the file to write. The JSON has for each loop the seconds that making batches took, as a stopwatch in the loop
saw it after the first step, and what its page shows: seconds by phase, steps, and by how many ns the totals differ from
the elapsed time.
"""

import io
import json
import sys
import time

import torch
from support.core_wait import CoreWait
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import goodput.auto
from goodput.rank_page.reader import Reader

STEPS, BATCH_SECONDS, WIDTH = 6, 0.03, 8
CASES = {}


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * BATCH_SECONDS)
        return gradient


class Model(nn.Module):
    """Returns its loss too, if it is given targets; its backward pass, or its calls in eval mode, may be slow."""

    def __init__(self, is_slow=False):
        super().__init__()
        self.inner, self.is_slow = nn.Linear(WIDTH, WIDTH), is_slow

    def forward(self, x, y=None):
        out = self.inner(x)
        if self.is_slow and not self.training:
            time.sleep(BATCH_SECONDS)
        out = SlowBackward.apply(out) if self.is_slow else out
        return out if y is None else (out, nn.functional.mse_loss(out, y))


class SlowParameters(Model):
    def parameters(self, recurse=True):
        return slowly(super().parameters(recurse))


class Batches:
    """Makes batches slowly; `seconds` is how long that took since `steps` were done."""

    def __init__(self):
        self.seconds, self.fetched = 0.0, 0

    def get(self, counts=True):
        began = time.perf_counter()
        time.sleep(BATCH_SECONDS)
        x = torch.randn(4, WIDTH)
        if counts:
            self.seconds += time.perf_counter() - began
        return x, x


def case(function):
    CASES[function.__name__] = function
    return function


def slowly(parameters):
    time.sleep(BATCH_SECONDS)
    yield from parameters


def parts(optimizers=1, is_slow=False):
    model = Model(is_slow)
    made = [torch.optim.SGD([part], lr=0.01) for part in list(model.parameters())[:optimizers]]
    return model, made, Batches()


@case
def cleared_by_hand():
    """Nothing of the loop's end and update is a call; the update may be part of the time before the next pass.

    The page opens at the second backward pass, which finds a gradient cleared, since nothing calls goodput.start.
    """
    model, batches = Model(), Batches()
    parameters = list(model.parameters())
    for _ in range(STEPS + 1):
        x, y = batches.get(False)
        loss = nn.functional.mse_loss(model(x), y)
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        for parameter in parameters:
            parameter.data.add_(parameter.grad, alpha=-0.01)
    model.zero_grad()
    return 0.0


@case
def updated_in_a_block():
    """The parameters are in a list, so that no pass over those of the model shows their update."""
    model, batches = Model(), Batches()
    parameters = list(model.parameters())
    for step in range(STEPS):
        x, y = batches.get(step > 0)
        nn.functional.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for parameter in parameters:
                time.sleep(BATCH_SECONDS)
                parameter -= 0.01 * parameter.grad
        model.zero_grad()
    return batches.seconds


@case
def updated_by_hand():
    """As in word_language_model: with clipped gradients and no optimizer in the process so far.

    The first step ends after the second batch.
    """
    model, batches = Model(), Batches()
    for step in range(STEPS):
        x, y = batches.get(step > 1)
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_value_(slowly(model.parameters()), 1.0)
        for parameter in model.parameters():
            time.sleep(BATCH_SECONDS)
            parameter.data.add_(parameter.grad, alpha=-0.01)
    model.zero_grad()
    return batches.seconds


@case
def updated_by_hand_with_loader():
    """The batches are those of a DataLoader, and a pass that ends early, with a batch after it, is no update."""
    model = Model()
    for x, y in DataLoader(TensorDataset(torch.randn(STEPS, WIDTH), torch.randn(STEPS, WIDTH))):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for _, parameter in model.named_parameters():
            time.sleep(BATCH_SECONDS)
            parameter.data.add_(parameter.grad, alpha=-0.01)
        for _ in model.parameters():
            time.sleep(BATCH_SECONDS)
            break
    model.zero_grad()
    return 0.0


@case
def gradients_without_backward():
    """As in meta-learning: torch.autograd.grad and an update by hand, in a process that has no optimizer.

    The first pass that uses the gradients of another opens the page, so one step is not seen. Gradients of an input, as
    for adversarial examples, which change the input and no parameter, are no training.
    """
    goodput.auto.remove()
    goodput.auto.install()
    model, batches, example = Model(), Batches(), torch.randn(4, WIDTH, requires_grad=True)
    for _ in range(3):
        [gradient] = torch.autograd.grad(model(example).sum(), [example])
        with torch.no_grad():
            example += gradient.sign()
    for step in range(STEPS + 1):
        x, y = batches.get(step > 2)
        gradients = torch.autograd.grad(nn.functional.mse_loss(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                time.sleep(BATCH_SECONDS)
                parameter -= 0.01 * gradient
    return batches.seconds


@case
def before_zero_grad():
    """As in word_language_model: the batch is sliced at the head of the loop."""
    model, [optimizer], batches = parts()
    for step in range(STEPS):
        x, y = batches.get(step > 0)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return batches.seconds


@case
def closure_of_an_optimizer():
    """As in time_sequence_prediction: the optimizer calls forward and backward, which take longer than the batch."""
    model, batches = Model(is_slow=True), Batches()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for step in range(STEPS):
        x, y = batches.get(step > 0)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return batches.seconds


@case
def two_optimizers():
    """The first one ends the step, the second steps after its end."""
    model, optimizers, batches = parts(2)
    for step in range(STEPS):
        x, y = batches.get(step > 0)
        nn.functional.mse_loss(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
    return batches.seconds


@case
def cleared_with_the_module():
    """As in nanochat: the module clears the gradients of an optimizer, after the step has ended."""
    model, batches = SlowParameters(), Batches()
    optimizer = torch.optim.SGD(model.inner.parameters(), lr=0.01)
    for step in range(STEPS):
        x, y = batches.get(step > 0)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        model.zero_grad()
    return batches.seconds


@case
def teacher():
    """A frozen model is called without gradients in each step; that is no evaluation, from its second call on.

    As in any later training of a process, the models are found after the first backward pass.
    """
    model, [optimizer], batches = parts()
    frozen = Model(is_slow=True).eval()
    for step in range(STEPS):
        x, _ = batches.get(step > 1)
        with torch.no_grad():
            target = frozen(x)
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    return batches.seconds


@case
def after_backward():
    """As in nanochat: the next batch is fetched after each of several backward passes, also the last."""
    model, [optimizer], batches = parts()
    x, y = batches.get(False)
    for step in range(STEPS):
        for _ in range(2):
            _, loss = model(x, y)
            (loss / 2).backward()
            x, y = batches.get(step > 0)
        optimizer.step()
        model.zero_grad()
    return batches.seconds


@case
def after_forward():
    """As in nanoGPT: the model computes the loss, and the next batch is fetched before the backward pass."""
    model, [optimizer], batches = parts()
    x, y = batches.get(False)
    for step in range(STEPS):
        for _ in range(2):
            _, loss = model(x, y)
            x, y = batches.get(step > 0)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return batches.seconds


@case
def clipped_gradients():
    """As in nanochat, with one backward pass: the batch is fetched between a slow one and the clipping."""
    model, [optimizer], batches = parts(is_slow=True)
    x, y = batches.get(False)
    for step in range(STEPS):
        nn.functional.mse_loss(model(x), y).backward()
        x, y = batches.get(step > 0)
        nn.utils.clip_grad_norm_(slowly(model.parameters()), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return batches.seconds


@case
def loss_before_zero_grad():
    """The loss takes longer than the model and less than its backward pass; gradients are cleared after it."""
    model, [optimizer], _ = parts(is_slow=True)
    x = torch.randn(4, WIDTH)
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(model(x), x)
        time.sleep(BATCH_SECONDS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return 0.0


@case
def slow_loss():
    """The loss is computed outside the model: that time is no batch."""
    model, [optimizer], _ = parts()
    x = torch.randn(4, WIDTH)
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(model(x), x)
        time.sleep(BATCH_SECONDS)
        loss.backward()
        optimizer.step()
    return 0.0


@case
def data_loader():
    """A loader is known, so other time before a forward pass is not the batch."""
    model, [optimizer], batches = parts()
    for x, y in DataLoader(TensorDataset(torch.randn(STEPS, WIDTH), torch.randn(STEPS, WIDTH))):
        batches.get(False)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return 0.0


@case
def slow_logging():
    """Only the loop's own lines show that what is slow before a forward pass makes no batch."""
    model, [optimizer], log = parts()
    x, y = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    for step in range(STEPS):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if step < STEPS - 1:
            log.get()
    return log.seconds


@case
def declared_phase():
    """A phase of the user's lies between the step's end and the forward pass."""
    model, [optimizer], batches = parts()
    for _ in range(STEPS):
        batches.get(False)
        with goodput.phase("augment"):
            time.sleep(BATCH_SECONDS)
        x, y = batches.get(False)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return 0.0


@case
def evaluation_and_checkpoint():
    """An evaluation or a checkpoint lies between the step's end and the forward pass."""
    model, [optimizer], batches = parts()
    for step in range(STEPS):
        x, y = batches.get(False)
        if step % 2:
            with torch.no_grad():
                model(x)
        else:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return 0.0


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report = {}
    # Work of goodput's own before the first step ends.
    goodput.auto._auto.before_first_step.append(lambda: time.sleep(BATCH_SECONDS))
    for name, function in CASES.items():
        if report:  # Else a training call opens the page.
            goodput.start(run=name, rank=0)
        waited, seconds = CoreWait(), function()
        recorder, writer = goodput._session.recorder, goodput._session.writer
        recorder.charge(time.perf_counter_ns())
        found = Reader(writer.path, writer.fd).snapshot()
        report[name] = {
            "batches": seconds,
            "core_wait": waited.seconds(),
            "steps": found.steps_done,
            "seconds": {p: ns / 1e9 for p, ns in zip(found.phases, found.totals, strict=False)},
            "off": found.last_ns - found.identity["start_mono_ns"] - sum(found.totals),
            **{state: goodput.report().account["basis"][state] for state in ("loader", "productive")},
            "drops": sum(found.drops.values()),
            "state_of_it": found.phase_states.get("before_forward"),
        }
        goodput.stop()
    with open(sys.argv[1], "w") as file:
        json.dump(report, file)


main()
