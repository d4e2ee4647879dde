"""What the trainer of a framework reports of a training: its first step, its step count, evaluations and its end.

Used by the callbacks in goodput/lightning.py and goodput/transformers.py, about 1 us a call. A process may train
several times. A training that resumes from a checkpoint goes back over recorded steps only if the training before it
was aborted; the work of one that ended is kept.

Steps end where the optimizer steps (step_detection.py). If their number differs from the trainer's count, as with an
optimizer that steps part by part, the trainer's count bounds them from then on.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from _thread import get_ident

from goodput.sdk.recorder.recorder import State
from goodput.sdk.recorder.training_calls import dead_reference
from goodput.user_exceptions import drop_own_frames, reraise_from_handler

# PyTorch's names of dtypes and those in the tables of peak FLOP/s.
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


class TrainerProgress:
    """The trainings of one process, one after the other.

    running     whether one has begun and not ended
    done        steps that the trainer has counted
    steps       steps recorded at that count, None if the two are not compared
    evaluating  whether `begin_evaluation` has opened an evaluation
    """

    def __init__(self, auto):
        self.auto, self.session = auto, auto.session
        self.recorder, self.training = auto.recorder, auto.training
        self.running, self.done, self.steps, self.evaluating = False, 0, None, False

    # -- begin and end

    def begin(self, done: int, microbatches=None, dtype: str | None = None, compared: bool = True) -> None:
        """The trainer starts with step index `done`; it has restored the work of the steps before.

        `microbatches` is the number of batches per step. `compared` says whether the trainer counts steps as
        step_detection.py does.
        """
        if not self.auto.on_step_thread():
            return
        was_aborted, self.running = self.running, True
        self.end_evaluation()
        self.auto.cancel_deep_look()
        self.auto.trainer_counts = False
        # That of an earlier training may still be alive.
        self.training.set_anchor(dead_reference)
        self._resume_after(done - 1, was_aborted)
        self.done, self.steps = done, self.recorder.steps if compared else None
        self.epoch_begins()
        self.session.declare(microbatches=microbatches, dtype=dtype)

    def epoch_begins(self) -> None:
        """The loader of an epoch may be another than before."""
        if self.auto.loaders is not None:
            self.auto.loaders.forget()

    def _resume_after(self, step: int, was_aborted: bool) -> None:
        recorder, training = self.recorder, self.training
        if recorder.step_next == step + 1:
            return
        if not recorder.steps and training.began and recorder.is_running(training.began):
            recorder.renumber(step)
        elif not recorder.steps or recorder.step_next <= step or (was_aborted and step >= 0):
            self.session.resume(step)
            training.step_dropped()

    def end(self) -> None:
        """The training is over and its work is kept; what follows is in no step."""
        self.running = False
        self.auto.leave_step()

    def abort(self, error: BaseException) -> None:
        """The training raised this error."""
        self.end_evaluation()
        self.session.mark(f"training broken off: {type(error).__name__}")

    # -- steps

    def steps_done(self, done: int) -> None:
        """The trainer has counted `done` steps."""
        if done == self.done or self.steps is None or self.recorder.thread != get_ident():
            return
        self.auto.compiled_optimizers.confirm()
        new, self.done = done - self.done, done
        if self.auto.trainer_counts:
            self.auto.end_step()
        elif self.auto.stepping and self.recorder.steps - self.steps != new:
            self.auto.use_trainers_steps()
        self.steps = self.recorder.steps

    # -- evaluation

    def begin_evaluation(self) -> None:
        """Everything until `end_evaluation` is evaluation."""
        training = self.training
        if self.evaluating or training.inside or not self.auto.on_step_thread():
            return
        self.auto.start_evaluation()
        if training.evaluating:
            self.evaluating = True
            training.enter_call()

    def end_evaluation(self) -> None:
        if self.evaluating:
            self.evaluating = False
            self.training.leave_call()
            self.auto.stop_evaluation()


def progress_of(auto) -> TrainerProgress:
    """The TrainerProgress of this process, created at the first call."""
    if auto.progress is None:
        auto.progress = TrainerProgress(auto)
    return auto.progress


def full_precision() -> str | None:
    """The dtype of matrix products of fp32 tensors: TF32 if PyTorch is set to it on NVIDIA devices, None if unknown."""
    torch = sys.modules["torch"]
    try:
        rounds = torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # It was set through both of PyTorch's interfaces.
        return None
    return "tf32" if rounds and torch.version.cuda and torch.cuda.is_initialized() else "fp32"


def declare_total_steps(auto, trainer, total_steps_of) -> None:
    """Declare the steps after which a training will end, if the trainer knows them; reading them may fail."""
    with contextlib.suppress(Exception):
        total = total_steps_of(trainer)
        if type(total) is int and 0 < total < sys.maxsize:
            auto.session.declare(total_steps=total)


def as_evaluation(auto, function):
    """Wrap a function whose whole call is evaluation."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        progress = progress_of(auto)
        outermost = not progress.evaluating
        if outermost:
            progress.begin_evaluation()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            if outermost:
                progress.end_evaluation()

    return call


def callback(function):
    """Wrap a callback's method: it does nothing if goodput is disabled, and its exceptions become warnings."""

    @functools.wraps(function)
    def call(self, *args, **kwargs):
        session = self.session
        if session.recorder.state == State.DISABLED:
            return
        try:
            function(self, *args, **kwargs)
        except Exception as error:
            reraise_from_handler(error)
            session.warn(f"{type(self).__module__}: {function.__name__}: {type(error).__name__}: {error}")

    return call
