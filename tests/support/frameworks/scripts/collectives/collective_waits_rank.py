"""One of two ranks over gloo that wait for each other in every way; run by test_collective_waits.py.

In: the folder to write to, and names of scenarios if not all. Out: `waits-RANK.json` with, by scenario, the seconds of
each phase and those by which this rank was late; and what else a scenario has found. The late rank is late at a place
that the scenario names, in a few steps, after some in which buckets are made and graphs are compiled.
"""

import goodput.auto  # isort: skip  # before PyTorch, as in a script
import copy
import json
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from support.core_wait import CoreWait
from support.frameworks import replaced_attributes
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import goodput
from goodput.rank_page import page

WARM, STEPS, DELAY_SECONDS = 2, 3, 0.05
SCENARIOS = {}


def scenario(function):
    """A function that returns (models, what makes a loss of inputs), or (no models, what is done in each step)."""
    SCENARIOS[function.__name__] = function
    return function


class Planted:
    """How late this rank was so far."""

    seconds, is_on = 0.0, False


def be_late(rank: int = 1) -> None:
    if Planted.is_on and dist.get_rank() == rank:
        began = time.perf_counter()
        time.sleep(DELAY_SECONDS)
        Planted.seconds += time.perf_counter() - began


class LateBackward(torch.autograd.Function):
    """Passes its input on; rank 1 is late in its backward pass."""

    @staticmethod
    def forward(ctx, values):
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        be_late()
        return gradient


class Model(torch.nn.Module):
    """Two layers, between which it is late, and what a scenario needs beside them."""

    def __init__(self, late=LateBackward.apply, unused=False, reentrant=False, buffer=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 1)
        self.unused = torch.nn.Linear(4, 4) if unused else None
        self.norm = torch.nn.BatchNorm1d(64) if buffer else torch.nn.Identity()
        self.late, self.reentrant = late, reentrant

    def forward(self, inputs):
        if self.reentrant:
            inputs.requires_grad_()
            return self.second(checkpoint(self.body, inputs, use_reentrant=True))
        return self.second(self.body(inputs))

    def body(self, inputs):
        return self.late(self.norm(torch.relu(self.first(inputs))))


def nowhere(values):
    return values


def simple(model, before=lambda: None):
    def loss(inputs):
        before()
        return model(inputs).sum()

    return [model], loss


@scenario
def late_in_backward():
    return simple(DistributedDataParallel(Model()))


@scenario
def late_in_forward():
    return simple(DistributedDataParallel(Model(late=lambda values: be_late() or values)))


@scenario
def static_graph():
    return simple(DistributedDataParallel(Model(), static_graph=True))


@scenario
def unused_parameters():
    return simple(DistributedDataParallel(Model(unused=True), find_unused_parameters=True))


@scenario
def bucket_views():
    return simple(DistributedDataParallel(Model(), gradient_as_bucket_view=True, bucket_cap_mb=0.001))


@scenario
def several_models():
    models = [DistributedDataParallel(Model(nowhere)), DistributedDataParallel(Model())]
    return models, lambda inputs: models[0](inputs).sum() + models[1](inputs).sum()


@scenario
def several_losses():
    model = DistributedDataParallel(Model())

    class Losses:
        def __init__(self, inputs):
            self.losses = [torch.ones(1, requires_grad=True) * 2, model(inputs).sum()]

        def backward(self):
            torch.autograd.backward(self.losses)

    return [model], Losses


@scenario
def reentrant():
    return simple(DistributedDataParallel(Model(reentrant=True)))


@scenario
def hook():
    model = DistributedDataParallel(Model())
    model.register_comm_hook(None, fp16_compress_hook)
    return simple(model)


@scenario
def buffers():
    """Rank 0 is late before its forward pass, in which rank 1 waits for its buffers."""
    return simple(DistributedDataParallel(Model(nowhere, buffer=True)), lambda: be_late(0))


@scenario
def accumulated():
    """Three passes in a step, of which the last one alone reduces."""
    model = DistributedDataParallel(Model())

    class Losses:
        def __init__(self, inputs):
            self.inputs = inputs

        def backward(self):
            for last in (False, False, True):
                with nullcontext() if last else model.no_sync():
                    model(self.inputs).sum().backward()

    return [model], Losses


@scenario
def compiled():
    model = DistributedDataParallel(Model(nowhere))
    fast = torch.compile(model, backend="aot_eager")
    return [model], lambda inputs: be_late() or fast(inputs).sum()


@scenario
def compiled_inside():
    return simple(DistributedDataParallel(torch.compile(Model(nowhere), backend="eager")), be_late)


@scenario
def by_hand():
    values = torch.ones(4)
    return [], lambda: be_late() or dist.all_reduce(values)


@scenario
def by_hand_later():
    """The wait for a collective that runs beside the computation."""
    values = torch.ones(4)
    return [], lambda: be_late() or dist.all_reduce(values, async_op=True).wait()


@scenario
def objects():
    return [], lambda: be_late() or dist.all_gather_object([None, None], {"rank": dist.get_rank()})


@scenario
def one_to_another():
    values = torch.ones(4)

    def step():
        be_late()
        dist.send(values, 0) if dist.get_rank() else dist.recv(values, 1)

    return [], step


@scenario
def compiled_by_hand():
    """Dynamo traces the collective as it would without goodput.auto, in one graph."""

    @torch.compile(backend="eager", fullgraph=True)
    def summed(values):
        doubled = values * 2
        dist.all_reduce(doubled, op=dist.ReduceOp.MAX)
        return doubled + 1

    def step():
        be_late()
        values = summed(torch.full((4,), float(dist.get_rank())))
        assert values.tolist() == [3.0] * 4
        dist.barrier()

    return [], step


@scenario
def distributed_tensor():
    """DTensor's functional collectives, waited for when their values are wanted."""
    mesh = init_device_mesh("cpu", (2,))
    whole = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    return [], lambda: be_late() or float(whole.redistribute(mesh, [Replicate()]).to_local().sum())


def totals() -> list[int]:
    recorder = goodput._session.recorder
    recorder.charge(time.perf_counter_ns())
    return [recorder.words[page.W_TOTALS + index] for index in range(len(page.PHASES))]


def measured(models, act) -> dict:
    """Seconds by phase of a few steps, and `planted`, by which this rank was late in them."""
    Planted.seconds, Planted.is_on = 0.0, False
    optimizer = torch.optim.SGD(
        [p for model in models for p in model.parameters()] or [torch.ones(1)], lr=0.01
    )
    goodput.auto._auto.roots.start_search()
    for number in range(WARM + STEPS):
        if number == WARM:
            dist.barrier()
            Planted.is_on, waited, before = True, CoreWait(), totals()
        if models:
            act(torch.randn(4, 16)).backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            act()
    found = {name: (b - a) / 1e9 for name, a, b in zip(page.PHASES, before, totals(), strict=True)}
    return {**found, "planted": Planted.seconds, "core_wait": waited.seconds()}


def raising() -> dict:
    """A backward pass that raises leaves no phase open; the model is then thrown away, as its reducer is in pieces."""

    class Raises(torch.autograd.Function):
        forward = staticmethod(lambda ctx, values: values.view_as(values))

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("on purpose")

    model = DistributedDataParallel(Model(Raises.apply))
    try:
        model(torch.randn(4, 16)).sum().backward()
    except ArithmeticError as error:
        raised = str(error)
    recorder = goodput._session.recorder
    return {
        "raised": raised,
        "depth": recorder.depth,
        "drops": recorder.words[page.W_DROPS + page.DROPS.index("phase")],
    }


def copied() -> dict:
    """A copy of a wrapped model is a model of its own."""
    model = DistributedDataParallel(Model(nowhere))
    model(torch.ones(1, 16)).sum().backward()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weights in other.parameters():
            weights.zero_()
    return {"timed": model._compiled_call_impl is not None, "copy": float(other(torch.ones(1, 16)))}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    found = {}
    for name in sys.argv[2:] or SCENARIOS:
        found[name] = measured(*SCENARIOS[name]())
        dist.barrier()
    found["raising"], found["copied"] = raising(), copied()
    during = replaced_attributes.ours()
    goodput.auto.remove()
    found["left"] = {"during": during, "after": replaced_attributes.ours()}
    with open(f"{sys.argv[1]}/waits-{dist.get_rank()}.json", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
