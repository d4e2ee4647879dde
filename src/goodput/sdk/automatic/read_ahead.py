"""Finds how long the step thread waits for batches that another thread fetches from a DataLoader.

The step thread cannot begin its n-th backward pass before the n-th batch of a loader is there. So its time in no phase
up to that moment is `loader`, and what follows is not. If a pass takes several batches of a loader, or several passes
take one, nothing is known.
"""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections import deque
from time import perf_counter_ns

from goodput.sdk.recorder.recorder import State

TIMES_MAX = 1024  # of the last batches of a loader
EARLY_MAX = 1024  # batches fetched before it is known which thread trains


class Batches:
    """How many batches of a loader other threads have fetched, and when the last of them were there."""

    def __init__(self):
        self.count = 0
        self.times: deque[int] = deque(maxlen=TIMES_MAX)

    def add(self, now_ns: int) -> None:
        self.times.append(now_ns)
        self.count += 1

    def arrived_ns(self, number: int) -> int:
        """When batch `number`, counted from 1, was there; 0 if that is not known."""
        at = number - self.count - 1
        return self.times[at] if -len(self.times) <= at < 0 else 0


class ReadAhead:
    """The batches of one page. `fetched` is called by the threads that fetch, all else by the step thread."""

    def __init__(self, recorder, training):
        self.recorder, self.training = recorder, training
        self._by_loader: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._words = None  # of the page in which batches are counted
        self._early: list[tuple] = []

    def fetched(self, loader) -> None:
        """A thread has fetched a batch. Before the first step the step thread may turn out not to train."""
        recorder, now_ns = self.recorder, perf_counter_ns()
        if recorder.thread == get_ident():
            if len(self._early) <= EARLY_MAX:
                self._early.append((get_ident(), now_ns, weakref.ref(loader)))
        elif recorder.state == State.RECORDING:
            self._add(loader, now_ns)
            self.training.fetches.set_read_ahead(True)
            self.training.gaps.set_batch_word(0)

    def thread_changed(self, before: int) -> None:
        """The calling thread is the step thread instead of `before`."""
        early, self._early = self._early, []
        if len(early) > EARLY_MAX:
            return
        for thread, now_ns, reference in early:
            loader = reference()
            if thread == before and loader is not None:
                self._add(loader, now_ns)
        if early:
            self.training.fetches.set_read_ahead(True)

    def arrived_ns(self) -> int:
        """When the batches of the next backward pass were there; 0 if that is not known."""
        if self._words is not self.recorder.words:
            return 0
        number = self.training.micro_batches + 1
        return max((batches.arrived_ns(number) for batches in tuple(self._by_loader.values())), default=0)

    def _add(self, loader, now_ns: int) -> None:
        if self._words is None:
            self._words = self.recorder.words
        self._by_loader.setdefault(loader, Batches()).add(now_ns)
