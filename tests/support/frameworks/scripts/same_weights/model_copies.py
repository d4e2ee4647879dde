"""Models that are pickled, copied, traced or freed after a measured training."""

import copy
import gc
import inspect
import io
import pickle
import weakref

import torch
from support.frameworks.scripts.same_weights.cases import (
    adam,
    case,
    data,
    loss_of,
    net_without_dropout,
    plain_net,
    trained,
    weights,
)
from torch import nn
from torch.utils.data import DataLoader


def zero(*models) -> None:
    with torch.no_grad():
        for model in models:
            for weight in model.parameters():
                weight.zero_()


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
    zero(twin)
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
        zero(twin, shallow)
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
    zero(twin)
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
    """A patched function keeps its name, module and signature."""
    model = trained()
    signatures = [
        str(inspect.signature(function))
        for function in (torch.save, torch.load, torch.autograd.grad, torch.optim.Optimizer.zero_grad)
    ]
    names = [torch.autograd.backward.__name__, torch.Tensor.to.__name__, torch.save.__module__]
    return [*weights(model), signatures, names, repr(model)]
