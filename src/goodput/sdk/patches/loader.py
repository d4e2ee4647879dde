"""The wait for the loader: the `__next__` of every DataLoader's iterator, and its making.

A batch of a loader that training has used before, or of any while none has been, is one to train on; another's, or
one fetched with gradients off, begins an evaluation. Iterables that are no DataLoader are timed by
`goodput.loader(iterable)`.
"""

from __future__ import annotations

import functools
import weakref
from _thread import get_ident

MODULE = "torch"
RELIES_ON = """torch/utils/data/dataloader.py: DataLoader.__iter__ returns an iterator whose class inherits
_BaseDataLoaderIter.__next__."""
DEPTH_MAX = 4


def apply(torch, auto) -> None:
    module, loaders = torch.utils.data.dataloader, Loaders(auto)
    auto.loaders, recorder, phase = loaders, auto.recorder, auto.loader
    grad_is_on, size = torch.is_grad_enabled, sizer(torch)
    auto.is_worker = lambda: torch.utils.data.get_worker_info() is not None
    iterate, advance = module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__

    @functools.wraps(iterate)
    def __iter__(self):
        if auto.inside or auto.evaluating or recorder.thread != get_ident():
            made = iterate(self)
        else:
            with phase:
                made = iterate(self)
        loaders.made(made, self)
        return made

    @functools.wraps(advance)
    def __next__(self):
        if auto.inside or (recorder.thread != get_ident() and not loaders.starts()):
            return advance(self)
        if id(self) != loaders.last:
            loaders.change(self)
        if auto.evaluating:
            if not loaders.trains or not grad_is_on():
                return advance(self)
            auto.stop_evaluation()
        elif not grad_is_on() or not loaders.trains:
            auto.start_evaluation()
            if auto.evaluating:
                return advance(self)
        if auto.optimizer_depth:
            auto.forget_raised()
        if not recorder.step_start_ns:
            auto.open_step()
        auto.after = 0
        with phase:
            batch = advance(self)
        auto.fetched = True
        if loaders.counts:
            auto.samples += size(batch)
        return batch

    auto.patches.replace(module.DataLoader, "__iter__", __iter__)
    auto.patches.replace(module._BaseDataLoaderIter, "__next__", __next__)
    auto.after_step.append(loaders.step_ended)


class Loaders:
    """Which loaders are for training, and whose samples are counted.

    last    id of the iterator asked last
    trains  whether its loader may be one for training
    counts  whether its samples are the step's
    """

    def __init__(self, auto):
        self.auto, self.last, self.trains, self.counts = auto, 0, True, True
        self._of: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._training: weakref.WeakSet = weakref.WeakSet()
        self._counted = lambda: None
        self._current = lambda: None
        self._known = True

    def starts(self) -> bool:
        """Whether the session starts here: in the main process, with gradients wanted."""
        return self.auto.is_here()

    def made(self, iterator, loader) -> None:
        """A loader has been asked for its iterator, which may be that of the epoch before."""
        try:
            self._of[iterator] = loader_ref = weakref.ref(loader)
            if iterator is self._current():
                self._known = loader_ref() in self._training
            self.last = 0
        except TypeError:
            pass

    def change(self, iterator) -> None:
        """Another iterator than the last one is asked."""
        self.last = id(iterator)
        loader = self._of.get(iterator, lambda: None)()
        self._current, self._loader = weakref.ref(iterator), loader
        self._known = loader is not None and loader in self._training
        self.trains = self._known or not self._training
        self.counts = self._counted() is None or self._counted() is loader

    def step_ended(self) -> None:
        """What was fetched in a step that has trained was for training."""
        if not self._known and self._current() is not None and self.trains:
            self._known = True
            if self._loader is not None:
                self._training.add(self._loader)
                if self._counted() is None:
                    self._counted = weakref.ref(self._loader)


def sizer(torch):
    """A function that says how many samples a batch has: the first dimension of the first tensor in it, else 0."""
    tensor = torch.Tensor

    def size(batch) -> int:
        for _ in range(DEPTH_MAX):
            if isinstance(batch, tensor):
                return batch.shape[0] if batch.ndim else 1
            if isinstance(batch, (list, tuple)):
                if not batch:
                    return 0
                batch = batch[0]
            elif hasattr(batch, "values") and hasattr(batch, "keys"):
                batch = next(iter(batch.values()), None)
            else:
                return 0
        return 0

    return size
