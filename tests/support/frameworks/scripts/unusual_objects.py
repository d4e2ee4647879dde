"""Odd batches, optimizers, saves, modules and loaders under goodput.auto, for test_unusual_objects.py; prints JSON."""

import gc
import importlib.machinery
import json
import sys
import tempfile
import tracemalloc
import types
import weakref

import torch
from torch import nn
from torch.utils.data import DataLoader

import goodput
import goodput.auto
from goodput.sdk.automatic import checkpoint_detection
from goodput.sdk.automatic.frameworks.torch import loader
from goodput.sdk.automatic.frameworks.torch.optimizer import steps_known
from goodput.sdk.automatic.import_hook import ImportHook
from goodput.sdk.automatic.patch import Patches

torch.set_num_threads(1)
found = {}


class Raises:
    """Every question raises."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


class Unsure(list):
    def __bool__(self):
        raise RuntimeError("bool")


class NoMethod:
    keys, values = (), 3


class Shapeless(torch.Tensor):
    shape = property(lambda self: 1 / 0)


class Closed(dict):
    def get(self, *args):
        raise RuntimeError("get")


def batches():
    """Each batch as the loader gives it back, and the samples that are counted in it."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    odd = [nested, NoMethod(), Unsure([torch.ones(3)]), torch.ones(4).as_subclass(Shapeless), Raises()]
    size = loader.sizer(torch)
    fetches = goodput._session.automatic.training.fetches
    found["sizes"] = [size(each) for each in [*odd, torch.ones(7, 2), [torch.tensor(1.0)]]]
    same, found["samples"] = [], []
    for batch in odd:
        fetches.take_samples()
        fetches.set_iterator(None, True)
        given = list(DataLoader([0], batch_size=None, collate_fn=lambda _, batch=batch: batch))
        same.append(given[0] is batch)
        found["samples"].append(fetches.samples)
    found["same"] = same


def first_step_is_let_go():
    """Neither the first batch nor the model stays alive once the loop has let them go, before a step has ended."""
    model, batch = nn.Linear(16, 2), torch.ones(4, 16)
    torch.optim.SGD(model.parameters(), lr=1.0)  # Says that this process trains.
    model(batch).sum().backward()
    refs = weakref.ref(model), weakref.ref(batch)
    found["dtype"] = goodput._session.identity.get("dtype")
    del model, batch
    gc.collect()
    found["alive"] = [ref() is not None for ref in refs]


def first_step_says_nonsense():
    """What the first optimizer's state says was done is no number."""
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad, optimizer.state[parameter] = torch.ones(2), {"step": torch.tensor(float("nan"))}
    optimizer.step()
    found["stepped"] = parameter.tolist()
    found["next"] = goodput._session.recorder.step_next
    kinds = [types.SimpleNamespace(state={0: {"step": torch.tensor(s)}}) for s in (5.0, float("inf"), 1j)]
    kinds += [types.SimpleNamespace(), types.SimpleNamespace(state=["step"]), Raises()]
    found["known"] = [steps_known(each, torch) for each in kinds]


def checkpoints():
    """What a save holds, and the memory that it takes to know."""
    model = {"weight": torch.ones(300)}
    many = {"floats": [0.5] * 20_001, "loose": dict.fromkeys(range(20_001), 0.5), "model": model}
    tokens = {"model": model, "tokens": [7] * 8_000_000, "nested": [[1], *[[2]] * 100_000]}
    odd = {"kind": torch.Tensor, "none": Raises(), "own": Closed(model), "list": Unsure([torch.ones(5)])}
    tracemalloc.start()
    found["numbers"] = [checkpoint_detection.numbers_in(each) for each in (many, tokens, odd)]
    found["bytes"] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found["enough"] = checkpoint_detection.numbers_in([torch.ones(3)] * 9, 4)
    found["step_in"] = [checkpoint_detection.step_in(each) for each in (Closed(step=8), Raises())]
    with tempfile.TemporaryFile() as file:
        torch.save(Closed(step=8), file)
        file.seek(0)
        found["loaded"] = dict(torch.load(file, weights_only=False))


def no_fetcher():
    """An iterator of PyTorch's that lacks what our hook reads fails as it would, and the next one works."""
    iterator, base = iter(DataLoader(range(4))), torch.utils.data._utils.fetch._BaseDatasetFetcher
    del iterator._dataset_fetcher
    try:
        next(iterator)
    except AttributeError as error:
        found["fetcher"] = str(error)
    found["marked"] = "collate_fn" in vars(base)
    found["next_loader"] = len(list(DataLoader(range(4))))


class OldLoader:
    def load_module(self, name):
        sys.modules[name] = types.ModuleType(name)
        return sys.modules[name]


class OldFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, OldLoader()) if name == "of_the_old_kind" else None


def imports():
    """A loader of the old kind brings its module; an odd entry of sys.modules does not end the sweep."""
    watch = ImportHook()
    watch.on_import("of_the_old_kind", lambda module: None)
    sys.meta_path.insert(0, OldFinder)
    watch.install()
    found["old"] = __import__("of_the_old_kind").__name__
    watch.remove()
    owner, later, patches = types.ModuleType("owner"), types.ModuleType("later"), Patches()
    owner.call = original = lambda: None
    patches.replace(owner, "call", lambda: None)
    later.call = owner.call
    sys.modules["odd"], sys.modules["later"] = Raises(), later
    patches.restore()
    del sys.modules["odd"]
    found["restored"] = later.call is original


for case in (first_step_is_let_go, first_step_says_nonsense, batches, checkpoints, no_fetcher, imports):
    try:
        case()
    except Exception as error:
        found.setdefault("raised", []).append(f"{case.__name__}: {type(error).__name__}: {error}")
print(json.dumps(found))
