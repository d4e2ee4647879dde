"""Wraps `__next__` of every DataLoader iterator, and `DataLoader.__iter__`, as the phase `loader`.

A batch of a loader that training has used before, or of any loader before training has used one, is a training batch;
a batch of another loader, or one fetched with gradients off, begins an evaluation. Other iterables are timed by
`goodput.loader(iterable)`.
"""

from __future__ import annotations

import functools
import weakref
from _thread import get_ident
from operator import index

from goodput.sdk.automatic.hooks import BATCH_DEPTH_MAX, NEXT, hook
from goodput.sdk.automatic.step_detection import warn_on_error
from goodput.sdk.recorder.training_calls import dead_reference
from goodput.user_exceptions import drop_own_frames, reraise_from_handler

MODULE = "torch"
RELIES_ON = """torch/utils/data/dataloader.py: DataLoader.__iter__ returns an iterator whose class inherits
_BaseDataLoaderIter.__next__."""
USED_MAX = 16
LOADER = "_goodput_loader"  # attribute of an iterator: a weak reference to its loader


def apply(torch, auto) -> None:
    module, loaders = torch.utils.data.dataloader, Loaders(auto, torch.is_grad_enabled)
    recorder, training, fetches, phase = auto.recorder, auto.training, auto.training.fetches, auto.loader
    auto.loaders, grad_is_on, size = loaders, torch.is_grad_enabled, sizer(torch)
    iterate, advance = module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__

    @auto.patches.wrap("__iter__", module.DataLoader)
    def __iter__(self):
        try:
            if training.inside or training.evaluating or recorder.thread != get_ident():
                made = iterate(self)
            else:
                made = phase.run(iterate, self)
        except BaseException as error:
            drop_own_frames(error)
            raise
        try:
            setattr(made, LOADER, weakref.ref(self))
        except (AttributeError, TypeError):
            pass  # An iterator of the user's that takes no attribute.
        return made

    def fetch_outside_training(iterator):
        """Fetch a batch of an evaluation: what the dataset calls meanwhile does not end it."""
        try:
            fetches.begin()
            auto.generations.left_ns = 0
            return advance(iterator)
        finally:
            fetches.end()

    @functools.wraps(advance)
    def any_next(self):
        try:
            if recorder.thread != get_ident() and not auto.on_step_thread():
                batch = advance(self)
                loaders.fetched(self)
                return batch
            if training.inside or fetches.fetching:
                return advance(self)  # A loader inside the dataset of another is part of that one's fetch.
            if training.unhooked_steps:
                auto.poll_steps()
            if not loaders.is_current(self):
                loaders.change(self)
            elif loaders.used and loaders.used[-1] is loaders._loader:
                loaders.used.pop()  # Used twice in a row, as in an evaluation.
            if not loaders.begin_fetch():
                return fetch_outside_training(self)
            auto.close_failed_step()
            if not recorder.step_start_ns:
                auto.open_step()
            training.forget_last_call()
            try:
                fetches.begin()
                batch = phase.run(auto.fetch_batch, advance, self)
            finally:
                fetches.end()
            if not loaders.fetched(self):
                return batch  # Another thread turned out to train.
            fetches.batch_came(size(batch) if fetches.counts_next else 0)
            return batch
        except BaseException as error:
            drop_own_frames(error)
            raise

    __next__ = hook(NEXT, training, phase, advance, any_next, test=grad_is_on)
    auto.patches.replace(module._BaseDataLoaderIter, "__next__", __next__)
    auto.after_step.append(loaders.step_ended)


class Loaders:
    """Which loaders are for training, and whose samples are counted.

    trains  whether the last loader used is for training, or any may be
    used    other loaders used in this step, which may be for training too
    """

    def __init__(self, auto, grad_is_on):
        self.auto, self.recorder, self.session = auto, auto.recorder, auto.session
        self.training, self.trains = auto.training, True
        self._training: weakref.WeakSet = weakref.WeakSet()
        self._current = self._counted = self._loader = dead_reference
        self.used: list = []
        self._may_train, self._grad_is_on = False, grad_is_on

    def begin_fetch(self) -> bool:
        """Begin or end an evaluation as the next fetch shows; returns whether it is of a batch to train on."""
        auto, training = self.auto, self.training
        if training.evaluating:
            if not self.trains or not self._grad_is_on():
                if not self.trains and auto.open_phase is auto.rollout:
                    auto.start_evaluation()
                return False
            auto.generations.fetched()
            auto.stop_evaluation()
        elif not self._grad_is_on() or not self.trains:
            auto.start_evaluation()
            if training.evaluating:
                auto.evaluated += 1
                return False
        elif auto.generations.current is not None:
            auto.generations.fetched()
        return True

    def loader_of(self, iterator):
        """The loader of an iterator; the iterator itself if the loader was created for one loop alone, and is gone."""
        loader = iterator.__dict__.get(LOADER, dead_reference)()
        return iterator if loader is None else loader

    def fetched(self, iterator) -> bool:
        """A batch was fetched. Returns whether the calling thread is the step thread."""
        recorder = self.recorder
        is_step_thread = recorder.thread == get_ident()
        if not (is_step_thread and recorder.steps) and self._grad_is_on():
            self.auto.attempt(self.auto.read_ahead.fetched, self.loader_of(iterator))
        return is_step_thread

    def is_current(self, iterator) -> bool:
        return self._current() is iterator

    @warn_on_error
    def change(self, iterator) -> None:
        """A batch is requested from another iterator than the last one."""
        loader = self.loader_of(iterator)
        self._current, self._loader = weakref.ref(iterator), weakref.ref(loader)
        known = loader in self._training
        self.trains = known or not self._training
        fetches = self.training.fetches
        # The first batch of another loader may belong to an evaluation, until a step trains on it.
        self._may_train = not self.training.evaluating and self._grad_is_on()
        if self._may_train and not known and len(self.used) < USED_MAX:
            self.used.append(self._loader)
        # With several loaders in a step, the samples of the first count.
        if not fetches.samples:
            self._counted = self._loader
        # The compiled hook knows training iterators alone.
        fetches.set_iterator(self._current if known else None, self._counted() is loader)
        self.auto.iterator_changed(iterator)
        self.auto.call_after_step()

    def step_ended(self) -> None:
        """Loaders used in a step that trained are for training."""
        self._training.update(loader for loader in (ref() for ref in self.used) if loader is not None)
        self.used.clear()
        loader, fetches = self._loader(), self.training.fetches
        iterator = fetches.iterator
        if loader is not None and (self.trains or self._may_train):
            self._training.add(loader)
            self.trains, iterator = True, self._current
        # It may be the first of the next step, too.
        self._counted = self._loader
        fetches.set_iterator(iterator, True)

    def forget(self) -> None:
        """Forget the loaders: a trainer begins to train or an epoch, maybe with others."""
        self._training.clear()
        self.used.clear()
        self._current = self._counted = self._loader = dead_reference
        self.training.fetches.forget_iterator()


def sizer(torch):
    """A function that counts the samples of a batch: the first dimension of its first tensor, else 0.

    A batch may be any object of the user; one that is empty or raises counts 0.
    """
    tensor = torch.Tensor

    def size(batch) -> int:
        try:
            for _ in range(BATCH_DEPTH_MAX):
                if isinstance(batch, tensor):
                    return max(index(batch.shape[0] if batch.ndim else 1), 0)
                if isinstance(batch, (list, tuple)):
                    batch = batch[0]
                elif hasattr(batch, "values") and hasattr(batch, "keys"):
                    batch = next(iter(batch.values()))
                else:
                    break
        except Exception as error:
            reraise_from_handler(error)
        return 0

    return size
