"""Steps of an optimizer that a compiler has taken into a graph, where no hook is called.

In: the optimizers that were made, looked at where a batch is fetched and before a backward pass. Out: a step reported to
step_detection.Automatic once parameters have changed since a backward pass. Every change in place, a graph's too, counts a
tensor's version up; to read it waits for nothing.

Only from the time a compiler is met until an optimizer's hook is called; a training without one pays nothing. It does
not know where between two looks the step was: it ends at the second.
"""

from __future__ import annotations

import weakref

OPTIMIZERS_MAX = 16


class Unseen:
    """`made` holds weak references to optimizers."""

    def __init__(self, auto):
        self.auto, self.recorder = auto, auto.recorder
        self.made: list = []
        self._known: dict[int, int | None] = {}
        self._steps = self._passes = 0
        auto.before_compiler.append(self._begin)

    def note(self, optimizer) -> None:
        """An optimizer was made."""
        self._known.pop(id(optimizer), None)  # Another's, that is gone.
        self.made = [ref for ref in self.made if ref() is not None][1 - OPTIMIZERS_MAX :]
        self.made.append(weakref.ref(optimizer))

    def look(self) -> None:
        """Tell of the steps since the last look."""
        recorder = self.recorder
        if recorder.optimizer_steps:
            recorder.unseen = False
            return
        changed = [optimizer for optimizer in self._optimizers() if self._has_changed(optimizer)]
        known = recorder.steps != self._steps or recorder.micro_batches == self._passes
        self._steps, self._passes = recorder.steps, recorder.micro_batches
        if not known:
            for optimizer in changed:
                self.auto.stepped(optimizer)
            self._steps = recorder.steps

    def _begin(self) -> None:
        self.recorder.unseen = not self.recorder.optimizer_steps
        for optimizer in self._optimizers():
            self._has_changed(optimizer)
        # The backward pass of the running step may be over.
        self._steps = self.recorder.steps
        self._passes = self.recorder.micro_batches - bool(self.recorder.trained)

    def _optimizers(self) -> list:
        return [optimizer for optimizer in (ref() for ref in self.made) if optimizer is not None]

    def _has_changed(self, optimizer) -> bool:
        try:
            version = optimizer.param_groups[0]["params"][0]._version
        except Exception:
            return False  # No parameters, or of a kind that counts nothing.
        before, self._known[id(optimizer)] = self._known.get(id(optimizer)), version
        return before is not None and before != version
