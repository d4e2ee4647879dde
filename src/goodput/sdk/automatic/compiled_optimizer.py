"""Detects steps of optimizers that call no hook: a compiler has traced `step` into a graph, or it has another name.

An in-place change, also one made by a graph, increments a tensor's version counter; reading it does not synchronise.
So where a batch is fetched, gradients are cleared or a backward pass begins, `poll` takes an optimizer whose parameters
have changed since a backward pass for one that has stepped. The step's end is placed at the poll. Polling starts when
the first optimizer is created and stops at the first call of an optimizer hook.

The parameters may have changed otherwise, as in the first half of a step of sharpness-aware minimization. So the first
ends are held back: the first call of a hook discards them; more of them, or other work than training, confirm them.
"""

from __future__ import annotations

import weakref
from itertools import islice

from goodput.sdk.recorder.training_calls import dead_reference
from goodput.user_exceptions import reraise_from_handler

OPTIMIZERS_MAX = 16
PARAMETERS_MAX = 4  # of an optimizer whose versions are compared
HELD_MAX = 3  # ends that are held back; at one more, all are confirmed


class CompiledOptimizers:
    """The optimizers that were created, the last OPTIMIZERS_MAX of them, held weakly."""

    def __init__(self, auto):
        self.auto, self.recorder, self.training = auto, auto.recorder, auto.training
        self._references: list = []
        self._versions: dict[int, list[int]] = {}
        self._steps = 0  # at the last poll
        self._passes = 0  # at the last change
        self.held: list[tuple] = []  # of step_detection.Automatic.hold_step
        self.is_confirmed = self._has_guessed = False
        auto.before_compiler.append(self._begin)

    def add(self, optimizer) -> None:
        self._versions.pop(id(optimizer), None)  # of an optimizer that is gone and had the same id
        self._references = [ref for ref in self._references if ref() is not None][1 - OPTIMIZERS_MAX :]
        self._references.append(weakref.ref(optimizer))
        self.training.set_unhooked_steps(not self.training.optimizer_steps)

    def poll(self) -> None:
        """Report the steps since the last poll."""
        recorder, training = self.recorder, self.training
        if training.optimizer_steps:
            training.set_unhooked_steps(False)
            return
        changed = [optimizer for optimizer in self._optimizers() if self._has_changed(optimizer)]
        has_ended, self._steps = recorder.steps != self._steps, recorder.steps
        if not changed or training.optimizer_depth:
            return
        has_trained, self._passes = training.micro_batches != self._passes, training.micro_batches
        if has_trained and not has_ended:
            self._has_guessed = True
            for optimizer in changed:
                self.auto.optimizer_stepped(optimizer, True)
            self._steps = recorder.steps

    def step_ended(self) -> None:
        """The anchor's step seems to have ended."""
        if self.is_confirmed:
            return self.auto.end_step()
        self.auto.hold_step()
        if len(self.held) > HELD_MAX:
            self.confirm()

    def confirm(self) -> None:
        """Record the steps whose ends were held back."""
        if self.held:
            held, self.held, self.is_confirmed = self.held, [], True
            self.auto.record_steps(held)

    def discard(self) -> None:
        """A hook was called, so that there is no need for guesses: those that are not confirmed were none."""
        if self._has_guessed:
            self.training.fetches.add_samples(sum(samples for _, samples, _ in self.held))
            self.forget()
            self.training.set_anchor(dead_reference)

    def forget(self) -> None:
        self.held, self.is_confirmed, self._has_guessed = [], False, False

    def _begin(self) -> None:
        self.training.set_unhooked_steps(not self.training.optimizer_steps)
        for optimizer in self._optimizers():
            if id(optimizer) not in self._versions:
                self._has_changed(optimizer)

    def _optimizers(self) -> list:
        return [optimizer for optimizer in (ref() for ref in self._references) if optimizer is not None]

    def _has_changed(self, optimizer) -> bool:
        try:
            parameters = (each for group in optimizer.param_groups for each in group["params"])
            trained = (each for each in parameters if each.requires_grad)
            versions = [each._version for each in islice(trained, PARAMETERS_MAX)]
        except Exception as error:
            reraise_from_handler(error)
            return False  # It has no parameters, or they have no version counter.
        before, self._versions[id(optimizer)] = self._versions.get(id(optimizer)), versions
        return before is not None and len(before) == len(versions) and before != versions
