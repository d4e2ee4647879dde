"""What a framework's calls mean: which of them bound a step, and which belong to an evaluation.

In: what the patches see on the step thread: a batch fetched, a root module called, a backward pass, an optimizer's
step. Out: steps begun and ended on the recorder, and the phase `evaluation` held open over a validation loop.

A step ends where its *anchor*, the first optimizer that stepped, has stepped; the next one begins there. So steps
touch, forward and backward passes of gradient accumulation fall into one step, and a second optimizer makes no
steps of its own. What comes between two steps and holds no training (evaluation, a checkpoint) is outside of steps.

A call is part of an evaluation if gradients are off and it works on no batch of the training loader, or from
`eval()` of a module that was trained until the next call that trains. It does not know PyTorch.
"""

from __future__ import annotations

import weakref
from _thread import get_ident
from time import perf_counter_ns

from goodput.sdk.patch import Patches
from goodput.sdk.recorder import FORKED_EARLY, NOT_STARTED, SAMPLES_MAX, STEP_MAX, whole

# Steps of another optimizer, without one of the anchor's, after which that one bounds steps.
OTHERS_MAX = 16
# What the last training call was: a gap between a forward pass and what follows it is the loss, and one between a
# backward pass and the optimizer is the clipping of gradients.
NOTHING, FORWARD, BACKWARD = 0, 1, 2


class Automatic:
    """The state of one process's automatic instrumentation.

    stepping    whether steps are bounded here; False once the user bounds them by hand
    began       start of the step that was begun here, 0 when none runs
    evaluating  whether the phase `evaluation` is held open
    inside      whether a root module, a backward pass or a collective is running: what is called in it is its own
    fetched     whether a batch of the training loader was fetched in this step
    after       NOTHING, FORWARD or BACKWARD
    """

    def __init__(self, session, phase):
        self.session, self.recorder, self.patches = session, session.recorder, Patches()
        for name in ("loader", "h2d", "forward", "backward", "optimizer", "communication"):
            setattr(self, name, phase(name))
        for name in ("checkpoint", "restore", "evaluation", "compile"):
            setattr(self, name, phase(name))
        self.forward_word, self.optimizer_word = self.forward.total, self.optimizer.total
        self.stepping, self.began, self.evaluating, self.inside = True, 0, False, False
        self.fetched, self.trained, self.after, self.samples = False, False, NOTHING, 0
        self.anchor, self.others = None, 0
        self.open_optimizer, self.optimizer_depth, self.optimizer_steps = None, 0, 0
        self.micro_batches = self.skipped_steps = self.reducers = 0
        self.is_worker = bool  # Replaced by what can tell a loader's worker process.
        # Called with no argument after each step that was ended here, and once before the first one ends.
        self.after_step: list = []
        self.before_first_step: list = []

    def is_here(self) -> bool:
        """Whether this is the step thread. Starts the session if nobody did and this is no loader's worker."""
        recorder = self.recorder
        return recorder.thread == get_ident() or (not self.is_worker() and recorder.ready())

    def is_rank(self) -> bool:
        """This process is going to train: it is a rank, also where it was forked before its parent started."""
        if self.recorder.thread == FORKED_EARLY and not self.is_worker():
            self.recorder.thread = NOT_STARTED
        return self.is_here()

    def tell_device(self, word: int) -> None:
        """A boundary for the device clock alone, in whichever thread the framework's code runs."""
        try:
            if self.recorder.device is not None:
                self.recorder.device(word)
        except Exception:
            self.recorder.device = None

    # -- steps

    def open_step(self) -> None:
        """Begin a step now, if one may begin."""
        recorder = self.recorder
        if not self.stepping or recorder.step_start_ns or recorder.thread != get_ident():
            return
        began = recorder.end_gap(perf_counter_ns())
        if recorder.begin_step(began, None, 0):
            self.began = began

    def leave_step(self) -> None:
        """What comes now is no training: a step that has not trained so far is not begun yet."""
        if self.began and not self.trained and self.recorder.is_running(self.began):
            self.recorder.abandon_step()
        self.began = 0 if not self.trained else self.began

    def stepped(self, optimizer) -> None:
        """An optimizer has stepped, or its step was skipped."""
        anchor = None if self.anchor is None else self.anchor()
        if anchor is not optimizer:
            self.others += 1
            if anchor is not None and self.others < OTHERS_MAX:
                return
            self.anchor = weakref.ref(optimizer)
        self.others = 0
        if self.recorder.thread != get_ident() and not self.recorder.adopt():
            return
        self._end_step()

    def _end_step(self) -> None:
        recorder, began = self.recorder, self.began
        self.trained = self.fetched = False
        self.after = NOTHING
        if not began:
            return self.open_step()
        if recorder.is_running(began):
            if self.before_first_step:
                self._run(self.before_first_step)
                self.before_first_step.clear()
            samples, self.samples = self.samples, 0
            recorder.step_samples = samples if samples < SAMPLES_MAX else 0
            now = recorder.end_step(perf_counter_ns())
            self.began = now if recorder.begin_step(now, None, 0) else 0
            self._run(self.after_step)
        else:
            self.began = 0

    def _run(self, functions: list) -> None:
        for function in functions:
            try:
                function()
            except Exception as error:
                self.session.say(f"automatic: {type(error).__name__}: {error}")

    def go_on_after(self, step) -> None:
        """The work up to `step` was restored: the first step of this attempt is `step + 1`."""
        index = whole(step, -1, STEP_MAX)
        recorder = self.recorder
        if index is None or recorder.thread != get_ident() or recorder.steps or recorder.step_next > index:
            return
        if self.began and recorder.is_running(self.began):
            recorder.renumber(index)
        else:
            self.session.resume(index)

    def by_hand(self) -> None:
        """The user bounds steps: none is begun here from now on."""
        if self.stepping:
            self.stepping = False
            self.stop_evaluation()
            if self.began and self.recorder.is_running(self.began):
                self.recorder.abandon_step()
            self.began = 0

    # -- training calls

    def trains(self) -> None:
        """A call that trains: an evaluation is over, a step runs."""
        if self.evaluating:
            self.stop_evaluation()
        if not self.recorder.step_start_ns:
            self.open_step()

    # -- evaluation

    def start_evaluation(self) -> None:
        """From here on it is evaluation, until `stop_evaluation`. Not inside a phase of the user's."""
        recorder = self.recorder
        if self.evaluating or recorder.thread != get_ident() or recorder.depth:
            return
        self.leave_step()
        self.after = NOTHING
        self.evaluation.__enter__()
        self.evaluating = True

    def stop_evaluation(self) -> None:
        if self.evaluating and self.recorder.thread == get_ident():
            self.evaluating = False
            self.evaluation.__exit__(None, None, None)

    # -- what runs around an optimizer's step

    def optimizer_begins(self, optimizer, _args=None, _kwargs=None) -> None:
        """Called before `optimizer.step`; nested for an optimizer that wraps another."""
        if self.optimizer_depth and self.open_optimizer is not optimizer:
            self.optimizer_depth += 1
            return
        if self.optimizer_depth:  # Its last step raised, so that nothing told its end.
            self.optimizer.__exit__(None, None, None)
        if self.evaluating or not self.recorder.step_start_ns:
            self.trains()
        self.optimizer_depth, self.open_optimizer = 1, optimizer
        if self.after == BACKWARD:
            self.recorder.gap = self.optimizer_word
        self.trained = True
        self.optimizer.__enter__()

    def optimizer_ends(self, optimizer, _args=None, _kwargs=None) -> None:
        """Called after `optimizer.step` returned."""
        if self.optimizer_depth > 1:
            self.optimizer_depth -= 1
        elif self.optimizer_depth:
            self.optimizer_depth, self.open_optimizer = 0, None
            self.optimizer.__exit__(None, None, None)
        self.optimizer_steps += 1
        self.after = NOTHING
        self.stepped(optimizer)

    def forget_raised(self) -> None:
        """An optimizer's step that raised has left its phase open."""
        if self.optimizer_depth:
            self.optimizer_depth, self.open_optimizer = 0, None
            self.optimizer.__exit__(None, None, None)

    # -- the end

    def remove(self) -> None:
        """Put every replaced attribute back."""
        self.stop_evaluation()
        self.patches.restore()
