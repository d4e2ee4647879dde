"""Decides which thread is the step thread, whose time the account divides.

The first thread that fetches a batch may only read ahead, and training may move to another thread. So a backward pass
or the step of an optimizer on another thread makes that one the step thread

- if the step thread is gone;
- if the step thread has not trained: it has no backward pass, for an optimizer it has completed no step;
- if the step thread did nothing measured from the backward pass to the optimizer's step and is in no phase: for the
  optimizer that bounds steps at once, for another one at the second step in a row.

Two threads that train at the same time do not take the step loop from each other. A call on another thread costs about
2 us.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from goodput.sdk.recorder.training_calls import dead_reference

IDLE_STEPS = 2  # of another optimizer than the anchor


class TrainingThread:
    def __init__(self, auto):
        self.auto, self.recorder, self.training = auto, auto.recorder, auto.training
        # Of the last calls on another thread: that thread and what the step thread had done by then.
        self._seen: tuple = ()
        self._idle_steps = 0

    def claim(self, optimizer=None) -> bool:
        """The calling thread begins a backward pass, or a step of this optimizer: whether it is the step thread now."""
        recorder, training = self.recorder, self.training
        if not recorder.is_recording:
            return False
        if recorder.thread in sys._current_frames() and not self._may_move(optimizer):
            return False
        if optimizer is not None and training.anchor() is not optimizer:
            training.set_anchor(dead_reference)  # Another training: its own optimizer bounds the steps.
        self._move()
        return True

    def _may_move(self, optimizer) -> bool:
        recorder, training, auto = self.recorder, self.training, self.auto
        if recorder.step_start_ns != training.began:
            return False  # A step that the user bounds.
        if recorder.steps == auto.steps_before:
            return not training.micro_batches if optimizer is None else not training.optimizer_depth
        seen = (get_ident(), recorder.last_ns, recorder.entries, recorder.steps)
        in_no_phase = recorder.depth == training.evaluating
        is_idle, self._seen = in_no_phase and seen == self._seen, seen
        if optimizer is None:
            return False
        self._idle_steps = self._idle_steps + 1 if is_idle else 0
        return is_idle and (training.anchor() is optimizer or self._idle_steps >= IDLE_STEPS)

    def _move(self) -> None:
        recorder, before = self.recorder, self.recorder.thread
        self._seen, self._idle_steps = (), 0
        self.auto.compiled_optimizers.forget()
        if recorder.depth:
            recorder.left_open[before] = recorder.left_open.get(before, 0) + recorder.depth
        recorder.take_over()
        self.auto.read_ahead.thread_changed(before)
