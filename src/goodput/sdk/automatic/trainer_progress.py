"""One training as a framework's trainer tells it: where it goes on from, how many steps it has done, how it ends.

In: what the trainer's callbacks are told (goodput/lightning.py, goodput/transformers.py). Out: the index of the next
step, and evaluation from its true begin to its true end, on the Automatic of this process. A process may train
several times. One that goes on from a checkpoint goes back over steps of this process only if the training before it
was broken off: the work of one that ended was kept, and a training that follows it is another.

Steps are bounded where the optimizer steps (step_detection.py). If that turns out to be more or less often than the
trainer counts, as with an optimizer that steps part by part, the trainer's count bounds them from then on.

A call costs about 1 us and never waits.
"""

from __future__ import annotations

import functools
import sys
from time import perf_counter_ns

from goodput.sdk.recorder.recorder import SAMPLES_MAX, State


class Training:
    """The trainings of one process, one after the other.

    running   whether one has begun and not ended
    done      steps that the trainer has counted
    steps     steps that were recorded by then, None where the two are not to be compared
    counts    whether the trainer's count bounds the steps
    """

    def __init__(self, auto):
        self.auto, self.session, self.recorder = auto, auto.session, auto.recorder
        self.running, self.done, self.steps, self.counts = False, 0, None, False
        self.holding = self.again = False
        self.own = 0  # start of a step that was begun here

    # -- begin and end

    def begins(self, done: int, compared: bool = True) -> None:
        """The trainer is about to take step number `done` (from 0); it restored the work of those before."""
        if not self.auto.is_here():
            return
        broken_off, self.running = self.running, True
        self.release()
        self.auto.end_deep_look()
        if self.counts:
            self.counts, self.auto.stepping = False, True
        # The optimizer that steps first bounds the steps; that of an earlier training may still be there.
        self.recorder.anchor = _nobody
        self._go_on_after(done - 1, broken_off)
        self.done, self.steps = done, self.recorder.steps if compared else None
        self.renews()

    def renews(self) -> None:
        """An epoch begins: its loader may be another than before."""
        if self.auto.loaders is not None:
            self.auto.loaders.forget()

    def _go_on_after(self, step: int, broken_off: bool) -> None:
        recorder = self.recorder
        if recorder.step_next == step + 1:
            return
        if not recorder.steps and recorder.began and recorder.is_running(recorder.began):
            recorder.renumber(step)
        elif not recorder.steps or recorder.step_next <= step or (broken_off and step >= 0):
            self.session.resume(step)
            recorder.began = self.own = 0

    def ends(self) -> None:
        """It is over and its work is kept: what follows is in no step."""
        self.running = False
        self._leave_step()

    def breaks(self, error: BaseException) -> None:
        """It was broken off by this; what is caught outside may begin another one."""
        self.release()
        self.session.mark(f"training broken off: {type(error).__name__}")

    # -- steps

    def stepped(self, done: int) -> None:
        """The trainer has done so many steps."""
        if done == self.done or self.steps is None:
            return
        new, self.done = done - self.done, done
        if self.counts:
            self._end_step()
        elif self.auto.stepping and self.recorder.steps - self.steps != new:
            self.counts = True
            self.auto.by_hand()
            self._end_step()
        self.steps = self.recorder.steps

    def _end_step(self) -> None:
        recorder, now_ns = self.recorder, perf_counter_ns()
        if self.own and recorder.is_running(self.own):
            samples, recorder.batch_samples = recorder.batch_samples, 0
            recorder.step_samples = samples if samples < SAMPLES_MAX else 0
            now_ns = recorder.end_step(now_ns)
        began = recorder.end_gap(now_ns)
        self.own = began if recorder.begin_step(began, None, 0) else 0

    def _leave_step(self) -> None:
        self.auto.leave_step()
        if self.own and self.recorder.is_running(self.own):
            self.recorder.abandon_step()
        self.own = 0

    # -- evaluation

    def hold(self) -> None:
        """It evaluates until `release`, whatever is called meanwhile."""
        recorder = self.recorder
        if self.holding or recorder.inside or not self.auto.is_here():
            return
        self.again = bool(self.own)
        if self.own:
            self._leave_step()
        self.auto.start_evaluation()
        if recorder.evaluating:
            self.holding = recorder.inside = True

    def release(self) -> None:
        if self.holding:
            self.holding = self.recorder.inside = False
            self.auto.stop_evaluation()
            if self.again:
                self._end_step()


def _nobody() -> None:
    """A reference to what is gone."""


def training(auto) -> Training:
    """That of this process."""
    if auto.training is None:
        auto.training = Training(auto)
    return auto.training


def full_precision() -> str | None:
    """The dtype of matrix products of fp32 tensors: PyTorch may be set to round them to TF32 on NVIDIA devices."""
    torch = sys.modules["torch"]
    try:
        rounds = torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # It was set through both of the interfaces that there are.
        return None
    return "tf32" if rounds and torch.version.cuda and torch.cuda.is_initialized() else "fp32"


def evaluates(auto, function):
    """`function`, all of which is evaluation."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        held = training(auto)
        if held.holding:
            return function(*args, **kwargs)
        held.hold()
        try:
            return function(*args, **kwargs)
        finally:
            held.release()

    return call


def hook(function):
    """A callback's method: nothing is done where goodput is disabled, and nothing raised into the trainer."""

    @functools.wraps(function)
    def call(self, *args, **kwargs):
        session = self.session
        if session.recorder.state == State.DISABLED:
            return
        try:
            function(self, *args, **kwargs)
        except Exception as error:
            session.warn(f"{type(self).__module__}: {function.__name__}: {type(error).__name__}: {error}")

    return call
