"""Plain loops: accumulation, mixed precision, unusual optimizers, activation checkpointing."""

import gc

import torch
from support.frameworks.scripts.same_weights.cases import (
    adam,
    case,
    data,
    loop,
    loss_of,
    net,
    plain_net,
    weights,
)
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


@case(steps=16)
def plain():
    model = net()
    optimizer = adam(model)
    for _ in range(2):
        loop(model, optimizer, DataLoader(data(), batch_size=4, shuffle=True))
    return weights(model)


@case(steps=8)
def without_a_loader():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    x, y = data().tensors
    for at in range(0, 32, 4):
        loss_of(model, x[at : at + 4], y[at : at + 4]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@case(steps=8)
def without_an_optimizer():
    """A backward pass finds that the gradients of the last one were used. The last step stays open."""
    model = plain_net()
    parameters = list(model.parameters())
    x, y = data(36).tensors
    for at in range(0, 36, 4):
        loss = loss_of(model, x[at : at + 4], y[at : at + 4])
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
    return weights(model)


@case(steps=4)
def accumulation():
    model = net()
    optimizer = adam(model)
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=4)):
        (loss_of(model, x, y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


@case(steps=8)
def autocast():
    model = net()
    optimizer = adam(model)
    for x, y in DataLoader(data(), batch_size=4):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@case(steps=8)
def scaler_with_skipped_steps():
    model = net()
    optimizer, scaler = adam(model), torch.amp.GradScaler(device="cpu", init_scale=4.0)
    skipped = 0
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=4)):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x, y)).backward()
        if number in (2, 3):
            model[0].weight.grad[0, 0] = float("inf")
        scaler.unscale_(optimizer)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return [*weights(model), skipped]


@case(steps=6)
def lbfgs_with_a_closure():
    model = net()
    model[1] = nn.Identity()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = data().tensors

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)
    return weights(model)


@case(steps=8)
def a_gan():
    maker, judge = net(8), nn.Linear(1, 1)
    of_maker, of_judge = adam(maker), adam(judge)
    for x, y in DataLoader(data(), batch_size=4):
        of_judge.zero_grad()
        (judge(maker(x).detach()).mean() - judge(y).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        (-judge(maker(x)).mean()).backward()
        of_maker.step()
    return weights(maker, judge)


@case(steps=8)
def a_gan_with_five_critic_steps():
    """The first optimizer that stepped, the critic's, bounds the steps."""
    maker, judge = net(8), nn.Linear(1, 1)
    of_maker, of_judge = adam(maker), adam(judge)
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=4)):
        real = y.requires_grad_()
        score = judge(real)
        (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        of_judge.zero_grad()
        (judge(maker(x).detach()).mean() - score.mean() + slope.square().mean()).backward()
        of_judge.step()
        if number % 5 == 4:
            of_maker.zero_grad()
            (-judge(maker(x)).mean()).backward()
            of_maker.step()
    return weights(maker, judge)


@case(steps=8)
def one_optimizer_for_each_layer():
    model = net()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[3])]
    for x, y in DataLoader(data(), batch_size=4):
        loss_of(model, x, y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


@case(steps=24)
def flags_of_optimizers():
    models = []
    for flags in ({"foreach": True}, {"fused": True}, {"capturable": False, "amsgrad": True}):
        model = net()
        loop(model, adam(model, **flags), DataLoader(data(), batch_size=4))
        models.append(model)
        gc.collect()  # Adam's profiled `step` is a cycle; until it is gone the first optimizer bounds steps.
    return weights(*models)


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another, as ZeroRedundancyOptimizer is."""

    def __init__(self, parameters, inner):
        super().__init__(parameters, {})
        self.inner = inner(self.param_groups)

    def step(self, closure=None):
        return self.inner.step(closure)


@case(steps=8)
def an_optimizer_that_wraps_another():
    model = net()
    optimizer = Wrapping(model.parameters(), lambda groups: torch.optim.AdamW(groups, lr=0.01))
    loop(model, optimizer, DataLoader(data(), batch_size=4))
    return weights(model)


@case(steps=8)
def a_scheduler():
    model = net()
    optimizer = adam(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for x, y in DataLoader(data(), batch_size=4):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        schedule.step()
    return [*weights(model), schedule.get_last_lr()]


@case(steps=8)
def step_in_the_backward_pass():
    """Each parameter's optimizer steps in a hook of its gradient; the first one bounds steps."""
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for x, y in DataLoader(data(), batch_size=4):
        loss_of(model, x, y).backward()
    return weights(model)


@case(steps=8)
def backward_with_arguments():
    model = net()
    optimizer = adam(model)
    for x, y in DataLoader(data(), batch_size=4):
        optimizer.zero_grad(set_to_none=False)
        out = model(x)
        out.backward(gradient=torch.ones_like(out), retain_graph=True)
        torch.autograd.backward([out], grad_tensors=[y], inputs=list(model.parameters()))
        grads = torch.autograd.grad(loss_of(model, x, y), list(model.parameters()), allow_unused=True)
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad += grad
        optimizer.step()
    return weights(model)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.last, self.reentrant = nn.Linear(8, 16), nn.Linear(16, 1), reentrant
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.Tanh())

    def forward(self, x):
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))


def checkpointed(reentrant):
    model = Checkpointed(reentrant)
    loop(model, adam(model), DataLoader(data(), batch_size=4))
    return weights(model)


@case(steps=8)
def activation_checkpointing():
    return checkpointed(False)


@case(steps=8)
def activation_checkpointing_reentrant():
    return checkpointed(True)
