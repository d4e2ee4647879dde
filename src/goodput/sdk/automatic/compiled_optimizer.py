"""Detects steps of optimizers whose `step` a compiler has traced into a graph, where no hook is called.

An in-place change, also one made by a graph, increments a tensor's version counter; reading it does not synchronise.
So where a batch is fetched and before each backward pass, `poll` reports a step of every optimizer whose first
parameter has changed since a backward pass. The step's end is placed at the poll. Polling starts when a compiler is
first used and stops at the first call of an optimizer hook; other trainings pay nothing.
"""

from __future__ import annotations

import weakref

from goodput.user_exceptions import reraise_from_handler

OPTIMIZERS_MAX = 16


class CompiledOptimizers:
    """The optimizers that were created, the last OPTIMIZERS_MAX of them, held weakly."""

    def __init__(self, auto):
        self.auto, self.recorder = auto, auto.recorder
        self._references: list = []
        self._versions: dict[int, int | None] = {}
        self._steps = self._passes = 0
        auto.before_compiler.append(self._begin)

    def add(self, optimizer) -> None:
        self._versions.pop(id(optimizer), None)  # of an optimizer that is gone and had the same id
        self._references = [ref for ref in self._references if ref() is not None][1 - OPTIMIZERS_MAX :]
        self._references.append(weakref.ref(optimizer))

    def poll(self) -> None:
        """Report the steps since the last poll."""
        recorder = self.recorder
        if recorder.optimizer_steps:
            recorder.unhooked_steps = False
            return
        changed = [optimizer for optimizer in self._optimizers() if self._has_changed(optimizer)]
        is_reported = recorder.steps != self._steps or recorder.micro_batches == self._passes
        self._steps, self._passes = recorder.steps, recorder.micro_batches
        if not is_reported:
            for optimizer in changed:
                self.auto.optimizer_stepped(optimizer)
            self._steps = recorder.steps

    def _begin(self) -> None:
        self.recorder.unhooked_steps = not self.recorder.optimizer_steps
        for optimizer in self._optimizers():
            self._has_changed(optimizer)
        # The backward pass of the running step may be over.
        self._steps = self.recorder.steps
        self._passes = self.recorder.micro_batches - bool(self.recorder.trained)

    def _optimizers(self) -> list:
        return [optimizer for optimizer in (ref() for ref in self._references) if optimizer is not None]

    def _has_changed(self, optimizer) -> bool:
        try:
            version = optimizer.param_groups[0]["params"][0]._version
        except Exception as error:
            reraise_from_handler(error)
            return False  # It has no parameters, or they have no version counter.
        before, self._versions[id(optimizer)] = self._versions.get(id(optimizer)), version
        return before is not None and before != version
