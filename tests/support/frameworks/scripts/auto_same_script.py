"""Trainings, each done without goodput.auto and with it, in one process; run by test_auto_same.py.

In: the file to write to. Out: JSON: by training whether both ended with the same bytes, what Dynamo counted in both,
the steps that were measured and those that were to be, and what was printed or warned of goodput.
"""

import copy
import gc
import io
import json
import os
import pickle
import sys
import time
import traceback
import warnings
import weakref

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

CASES = {}


def case(steps=None):
    def add(function):
        CASES[function.__name__] = (function, steps)
        return function

    return add


def seeded(seed: int = 0) -> None:
    torch.manual_seed(seed)


def net(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(width, 1))


def data(rows: int = 32) -> TensorDataset:
    made = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randn(rows, 8, generator=made), torch.randn(rows, 1, generator=made))


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def weights(*models) -> list[bytes]:
    """Parameters, buffers and gradients, byte for byte."""
    found = []
    for model in models:
        for values in (*model.parameters(), *model.buffers()):
            found.append(values.detach().numpy().tobytes())
            grad = getattr(values, "grad", None)
            found.append(b"" if grad is None else grad.numpy().tobytes())
    return found


def adam(model, **others):
    return torch.optim.Adam(model.parameters(), lr=0.01, **others)


def loop(model, optimizer, batches, loss=loss_of) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()


# -- plain loops


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


# -- activation checkpointing


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


# -- loaders


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


# -- the compiler


def compiled(make_loss, model, steps: int = 8):
    optimizer = adam(model)
    loss = make_loss(model)
    x, y = data().tensors
    for at in range(0, 4 * steps, 4):
        optimizer.zero_grad()
        loss(x[at : at + 4], y[at : at + 4]).backward()
        optimizer.step()
    return weights(model)


class Net(nn.Sequential):
    """Of its own file, since Dynamo leaves out frames of torch's."""

    def forward(self, x):
        return super().forward(x)


def plain_net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def net_without_dropout():
    return Net(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


@case(steps=8)
def compile_eager_fullgraph():
    def make(model):
        fast = torch.compile(model, backend="eager", fullgraph=True)
        return lambda x, y: loss_of(fast, x, y)

    return compiled(make, net_without_dropout())


@case(steps=8)
def compile_aot_eager():
    def make(model):
        fast = torch.compile(model, backend="aot_eager")
        return lambda x, y: loss_of(fast, x, y)

    return compiled(make, net_without_dropout())


@case(steps=4)
def compile_inductor():
    def make(model):
        fast = torch.compile(model, fullgraph=True)
        return lambda x, y: loss_of(fast, x, y)

    return compiled(make, net_without_dropout(), 4)


@case(steps=8)
def compile_the_loss_function():
    def make(model):
        return torch.compile(lambda x, y: loss_of(model, x, y), backend="aot_eager", fullgraph=True)

    return compiled(make, net_without_dropout())


@case(steps=8)
def model_compile():
    def make(model):
        model.compile(backend="aot_eager", fullgraph=True)
        return lambda x, y: loss_of(model, x, y)

    return compiled(make, net_without_dropout())


@case(steps=8)
def model_compile_after_the_first_steps():
    calls = 0

    def make(model):
        def loss(x, y):
            nonlocal calls
            calls += 1
            if calls == 4:
                model.compile(backend="aot_eager", fullgraph=True)
            return loss_of(model, x, y)

        return loss

    return compiled(make, net_without_dropout())


@case(steps=8)
def compile_after_the_first_steps():
    calls = 0

    def make(model):
        fast = None

        def loss(x, y):
            nonlocal calls, fast
            calls += 1
            if calls == 4:
                fast = torch.compile(model, backend="aot_eager", fullgraph=True)
            return loss_of(fast or model, x, y)

        return loss

    return compiled(make, net_without_dropout())


@case(steps=8)
def compile_a_part():
    def make(model):
        model[0] = torch.compile(model[0], backend="aot_eager")
        return lambda x, y: loss_of(model, x, y)

    return compiled(make, net_without_dropout())


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

    def make(model):
        fast = torch.compile(model, backend="aot_eager")
        return lambda x, y: loss_of(fast, x, y)

    return compiled(make, Breaks())


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
    def make(model):
        fast = torch.compile(model, backend="aot_eager")
        return lambda x, y: loss_of(fast, x, y)

    with torch._dynamo.config.patch(compiled_autograd=True):
        return compiled(make, net_without_dropout())


# -- what is done with a timed model; the weights at the end, and what came of it


def trained(model=None):
    model = net_without_dropout() if model is None else model
    loop(model, adam(model), DataLoader(data(), batch_size=4))
    return model


def clean(raw: bytes) -> bytes:
    assert b"goodput" not in raw, "goodput was pickled"
    return raw


def pickled(model) -> list[str]:
    clean(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    assert b"goodput" not in file.getvalue()
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert "_compiled_call_impl" not in vars(again)
    return sorted(vars(again))


class OwnState(nn.Module):
    """A module that says itself what is copied and pickled of it, and forgets what torch leaves out."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x)

    def __getstate__(self):
        return self.__dict__.copy()


class OwnCopy(OwnState):
    def __copy__(self):
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._modules = dict(self._modules)
        return made


@case(steps=8)
def pickle_and_copies():
    model = trained()
    twin = copy.deepcopy(model)
    found = [pickled(model), pickled(copy.copy(model)), pickled(twin), list(model.state_dict())]
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    x = data().tensors[0]
    return [*found, *weights(model, twin), twin(x).sum().item(), model(x).sum().item()]


@case(steps=16)
def copies_with_a_state_of_their_own():
    found = []
    for make in (OwnState, OwnCopy):
        model = trained(make())
        clean(pickle.dumps(model))
        twin, shallow = copy.deepcopy(model), copy.copy(model)
        shallow.layer = nn.Linear(8, 1)
        with torch.no_grad():
            for weight in (*twin.parameters(), *shallow.parameters()):
                weight.zero_()
        x = data().tensors[0]
        found += [each(x).sum().item() for each in (model, twin, shallow)]
        model.compile(backend="eager")
        found += [each(x).sum().item() for each in (model, twin, shallow)]
        found += weights(model, twin, shallow)
        del model, twin, shallow
        gc.collect()
    return found


@case(steps=8)
def replicas():
    """What DataParallel does, without its devices."""
    model = trained()
    replica = model._replicate_for_data_parallel()
    assert "_compiled_call_impl" not in vars(replica)
    replica._modules = {"0": nn.Linear(8, 1, bias=False)}
    with torch.no_grad():
        replica._modules["0"].weight.fill_(0.5)
    return [*weights(model), replica(data().tensors[0]).sum().item()]


@case(steps=8)
def graphs_of_it():
    model = trained(plain_net())
    x = data().tensors[0]
    traced, scripted = torch.jit.trace(model, x), torch.jit.script(model)
    symbolic = torch.fx.symbolic_trace(model)
    exported = torch.export.export(model, (x,))
    traced_calls = [node.kind() for node in traced.inlined_graph.nodes()]
    found = [traced_calls, str(scripted.code), symbolic.code, exported.graph_module.code]
    found += [each(x).sum().item() for each in (traced, scripted, symbolic, exported.module())]
    found.append(torch.func.functional_call(model, dict(model.named_parameters()), (x,)).sum().item())
    per_row = torch.func.vmap(lambda row: model(row))(x)
    slope = torch.func.grad(lambda rows: model(rows).sum())(x)
    return [*weights(model), *found, per_row.sum().item(), slope.sum().item()]


@case(steps=8)
def graphs_trained():
    """A module that fx has made is a root as well; it is pickled by a way of its own."""
    model = torch.fx.symbolic_trace(plain_net())
    trained(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    x = data().tensors[0]
    clean(pickle.dumps(model))
    return [*weights(model), twin(x).sum().item(), copy.copy(model)(x).sum().item()]


@case(steps=8)
def scripted_and_trained():
    model = torch.jit.script(plain_net())
    return weights(trained(model))


@case(steps=8)
def hooks_of_the_model():
    model, seen = net_without_dropout(), []
    model.register_forward_pre_hook(lambda module, args: seen.append("before"))
    model.register_forward_hook(lambda module, args, out: out * 2)
    model.register_full_backward_hook(lambda module, into, out: seen.append("back"))
    trained(model)
    return [*weights(model), seen]


@case(steps=8)
def a_forward_replaced():
    model = net_without_dropout()
    optimizer = adam(model)
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=4)):
        if number == 3:
            model.forward = lambda rows, plain=model.forward: plain(rows) * 3
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return weights(model)


@case(steps=16)
def models_are_freed_at_once():
    found, optimizers = [], []
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            model = trained()
            reference, parameter = weakref.ref(model), weakref.ref(model[0].weight)
            found += weights(model)
            del model
            found += [reference() is None, parameter() is None]
    finally:
        gc.enable()
        gc.collect()
    return [*found, optimizers]


@case(steps=7)
def freed_after_an_optimizer_that_raised():
    """Nothing of ours keeps the weights of a step that failed."""

    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            if self.param_groups[0].get("fails"):
                raise MemoryError
            return super().step(closure)

    gc.collect()
    gc.disable()
    try:
        model = net_without_dropout()
        optimizer = Fails(model.parameters(), lr=0.1)
        x, y = data().tensors
        for number in range(8):
            optimizer.param_groups[0]["fails"] = number == 7
            try:
                loss_of(model, x, y).backward()
                optimizer.step()
            except MemoryError:
                pass
        found, reference = weights(model), weakref.ref(model[0].weight)
        del model, optimizer
        found.append(reference() is None)
    finally:
        gc.enable()
    return found


@case(steps=8)
def attributes_of_what_is_patched():
    """A patched function still looks like itself."""
    import inspect

    model = trained()
    signatures = [
        str(inspect.signature(function))
        for function in (torch.save, torch.load, torch.autograd.grad, torch.optim.Optimizer.zero_grad)
    ]
    names = [torch.autograd.backward.__name__, torch.Tensor.to.__name__, torch.save.__module__]
    return [*weights(model), signatures, names, repr(model)]


# -- both ways


def counted() -> dict:
    import torch._dynamo.utils

    counters = torch._dynamo.utils.counters
    names = ("stats", "frames", "graph_break", "recompiles", "aot_autograd")
    return {name: dict(counters[name]) for name in names if counters[name]}


def once(function) -> tuple:
    """(what came of it, Dynamo's counts, warnings that name goodput, seconds)."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    seeded()
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = function()
        except Exception:
            result = traceback.format_exc()
    seconds = time.perf_counter() - began
    return result, counted(), [str(each.message) for each in warned], seconds


def main() -> None:
    import torch._dynamo.utils

    import goodput.auto

    torch.set_num_threads(1)
    goodput.auto.remove()
    recorder, report = goodput._session.recorder, {}
    for name in os.environ.get("CASES", "").split() or CASES:
        function, steps = CASES[name]
        plain = once(function)
        goodput.auto.install()
        before = max(recorder.steps, 0)
        timed = once(function)
        goodput.auto.remove()
        report[name] = {
            "same": plain[0] == timed[0] and isinstance(plain[0], list),
            "results": [each[0] if isinstance(each[0], str) else "" for each in (plain, timed)],
            "differ": [str(pair)[:300] for pair in zip(plain[0], timed[0], strict=False) if pair[0] != pair[1]][:3],
            "counted": [plain[1], timed[1]],
            "warned": [plain[2], timed[2]],
            "steps": [steps, recorder.steps - before],
            "depth": recorder.depth,
            "seconds": [round(plain[3], 3), round(timed[3], 3)],
        }  # fmt: skip
    from goodput.rank_page import page

    at = page.W_DROPS
    report["drops"] = dict(zip(page.DROPS, recorder.words[at : at + len(page.DROPS)].tolist(), strict=True))
    with open(sys.argv[1], "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
