"""Models, losses, optimizers and whole steps under torch.compile."""

import torch
from support.frameworks.scripts.same_weights.cases import (
    adam,
    case,
    data,
    loss_of,
    net_without_dropout,
    weights,
)
from torch import nn
from torch.utils.data import DataLoader


def trained_as(prepare, model=None, steps: int = 8):
    """Train a model through `prepare(model)`, the callable that each step calls."""
    model = net_without_dropout() if model is None else model
    optimizer, call = adam(model), prepare(model)
    x, y = data().tensors
    for at in range(0, 4 * steps, 4):
        optimizer.zero_grad()
        loss_of(call, x[at : at + 4], y[at : at + 4]).backward()
        optimizer.step()
    return weights(model)


@case(steps=8)
def compile_eager_fullgraph():
    return trained_as(lambda model: torch.compile(model, backend="eager", fullgraph=True))


@case(steps=8)
def compile_aot_eager():
    return trained_as(lambda model: torch.compile(model, backend="aot_eager"))


@case(steps=4)
def compile_inductor():
    return trained_as(lambda model: torch.compile(model, fullgraph=True), steps=4)


@case(steps=8)
def compile_the_loss_function():
    model = net_without_dropout()
    optimizer = adam(model)
    loss = torch.compile(lambda x, y: loss_of(model, x, y), backend="aot_eager", fullgraph=True)
    x, y = data().tensors
    for at in range(0, 32, 4):
        optimizer.zero_grad()
        loss(x[at : at + 4], y[at : at + 4]).backward()
        optimizer.step()
    return weights(model)


@case(steps=8)
def model_compile():
    def prepare(model):
        model.compile(backend="aot_eager", fullgraph=True)
        return model

    return trained_as(prepare)


@case(steps=8)
def model_compile_after_the_first_steps():
    calls = 0

    def prepare(model):
        def call(x):
            nonlocal calls
            calls += 1
            if calls == 4:
                model.compile(backend="aot_eager", fullgraph=True)
            return model(x)

        return call

    return trained_as(prepare)


@case(steps=8)
def compile_after_the_first_steps():
    calls, fast = 0, None

    def prepare(model):
        def call(x):
            nonlocal calls, fast
            calls += 1
            if calls == 4:
                fast = torch.compile(model, backend="aot_eager", fullgraph=True)
            return (fast or model)(x)

        return call

    return trained_as(prepare)


@case(steps=8)
def compile_a_part():
    def prepare(model):
        model[0] = torch.compile(model[0], backend="aot_eager")
        return model

    return trained_as(prepare)


@case(steps=8)
def compile_with_a_graph_break():
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.last(x.tanh())

    return trained_as(lambda model: torch.compile(model, backend="aot_eager"), Breaks())


@case(steps=8)
def compile_the_optimizer():
    model = net_without_dropout()
    optimizer = adam(model)
    x, y = data().tensors

    @torch.compile(backend="eager")
    def step():
        optimizer.step()

    for at in range(0, 32, 4):
        optimizer.zero_grad()
        loss_of(model, x[at : at + 4], y[at : at + 4]).backward()
        step()
    return weights(model)


@case(steps=8)
def compile_the_whole_step():
    """Where the optimizer's hooks make no graph of their own, Dynamo compiles around them."""
    model = net_without_dropout()
    optimizer = adam(model)
    x, y = data().tensors

    @torch.compile(backend="aot_eager")
    def step(a, b):
        optimizer.zero_grad()
        loss = loss_of(model, a, b)
        loss.backward()
        optimizer.step()
        return loss

    for at in range(0, 32, 4):
        step(x[at : at + 4], y[at : at + 4])
    return weights(model)


@case(steps=8)
def compile_the_whole_step_of_a_loader():
    """No hook of the optimizer's is called; the last step ends where the loader does."""
    model = net_without_dropout()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @torch.compile(backend="aot_eager")
    def step(a, b):
        optimizer.zero_grad()
        loss_of(model, a, b).backward()
        optimizer.step()

    for x, y in DataLoader(data(), batch_size=4):
        step(x, y)
    return weights(model)


@case(steps=8)
def compile_the_optimizer_of_a_loader():
    model = net_without_dropout()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for x, y in DataLoader(data(), batch_size=4):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        step()
    return weights(model)


@case(steps=6)
def compile_with_other_shapes():
    model = net_without_dropout()
    fast, optimizer = torch.compile(model, backend="aot_eager", dynamic=False), adam(model)
    x, y = data().tensors
    for rows in (4, 4, 5, 5, 6, 6):
        optimizer.zero_grad()
        loss_of(fast, x[:rows], y[:rows]).backward()
        optimizer.step()
    return weights(model)


@case(steps=8)
def compiled_autograd():
    with torch._dynamo.config.patch(compiled_autograd=True):
        return compile_aot_eager()
