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

import functools
import weakref
from _thread import get_ident
from time import perf_counter_ns

from goodput.rank_page import page
from goodput.sdk.automatic.compiled_optimizer import Unseen
from goodput.sdk.automatic.overhead_budget import CHECK_STEPS, Budget, share_of
from goodput.sdk.automatic.patch import Patches
from goodput.sdk.recorder.messages import short_repr
from goodput.sdk.recorder.recorder import SAMPLES_MAX, STEP_MAX, State, whole
from goodput.sdk.recorder.user_signals import pass_on

# Steps of another optimizer, without one of the anchor's, after which that one bounds steps.
OTHERS_MAX = 16
# What the last training call was: a gap between a forward pass and what follows it is the loss, and one between a
# backward pass and the optimizer is the clipping of gradients.
NOTHING, FORWARD, BACKWARD = 0, 1, 2


def quietly(method):
    """Whatever goes wrong in this method is said, and not raised into the training."""

    @functools.wraps(method)
    def call(self, *args):
        try:
            return method(self, *args)
        except Exception as error:
            pass_on(error)
            self.session.warn(f"automatic: {type(error).__name__}: {short_repr(error)}")

    return call


class Automatic:
    """The state of one process's automatic instrumentation.

    stepping    whether steps are bounded here; False once the user bounds them by hand

    On the recorder, where the compiled hooks find it:
    began       start of the step that was begun here, 0 when none runs
    evaluating  whether the phase `evaluation` is held open
    inside      whether a root module or a backward pass is running: what is called in it is its own
    trained     whether the running step has trained
    fetched     whether a batch of the training loader was fetched in this step
    after       NOTHING, FORWARD or BACKWARD
    anchor      weak reference to the optimizer that bounds steps
    plain       whether nothing is to be settled at the step's end
    """

    def __init__(self, session, phase):
        self.session, self.recorder, self.patches = session, session.recorder, Patches()
        for name in ("loader", "h2d", "forward", "backward", "optimizer", "communication"):
            setattr(self, name, phase(name))
        for name in ("checkpoint", "restore", "evaluation", "compile"):
            setattr(self, name, phase(name))
        self.forward_word, self.optimizer_word = self.forward.total, self.optimizer.total
        self.stepping, self.others, self.others_at, self.skipped_steps = True, 0, 0, 0
        self.other = _nobody
        self.recorder.anchor, self.recorder.optimizer_steps = _nobody, 0
        self.training = (
            None  # goodput.sdk.automatic.trainer_progress.Training, where a trainer of a framework runs
        )
        self.loaders = None  # goodput.sdk.automatic.frameworks.torch.loader.Loaders
        self.deep_look = None  # goodput.sdk.automatic.deep_look.DeepLook, where one was asked for
        self.optimizer_made = False
        self.is_worker = bool  # Replaced by what can tell a loader's worker process.
        # Replaced by what looks at what a batch is waited for: (advance, iterator) -> batch, (iterator) before its first.
        self.next_of, self.look_at = _call, bool
        # The thread that waits for other ranks beside the step thread; whether an optimizer's step is none of training.
        self.waiting, self.removed = 0, False
        self.collectives: dict = {}  # those that torch.distributed carries, each with what it replaced
        # Called with no argument after a step in which something was new (`unsettled`), and once before the first ends.
        self.unsettled = True
        self.after_step: list = []
        self.before_first_step: list = []
        self.unknown_roots: list = []
        # Called with no argument before a compiler traces for the first time.
        self.before_compiler: list = []
        self.unseen = Unseen(self)
        self.in_a_step = bool  # Replaced by what can tell an optimizer's step inside another.
        self.looked_at = 0
        self.budget = Budget(self, share_of(session.environ, session.warn))
        # Called with no argument after every CHECK_STEPS steps.
        self.now_and_then: list = [self._count_all, self.budget.check]

    def is_here(self) -> bool:
        """Whether this is the step thread. Starts the session if nobody did and this is no loader's worker."""
        recorder = self.recorder
        return recorder.thread == get_ident() or (not self.is_worker() and recorder.ready())

    def is_rank(self) -> bool:
        """This process is going to train: it is a rank, also where it was forked before its parent started."""
        if self.recorder.state == State.FORKED_EARLY and not self.is_worker():
            self.recorder.set_state(State.NOT_STARTED)
        return self.is_here()

    def expect_training(self) -> None:
        """An optimizer was made. Its first training call opens the page, since the rank may not be known before."""
        self.optimizer_made = True
        if self.recorder.state == State.FORKED_EARLY and not self.is_worker():
            self.recorder.set_state(State.NOT_STARTED)

    def opens_page(self) -> bool:
        """Whether a training call runs on the step thread; the first one opens the page."""
        recorder = self.recorder
        if recorder.thread == get_ident():
            return True
        return recorder.state == State.NOT_STARTED and self.optimizer_made and self.is_here()

    def tell_device(self, word: int) -> None:
        """A boundary for the device clock alone, in whichever thread the framework's code runs."""
        try:
            if self.recorder.device is not None:
                self.recorder.device(word)
        except Exception as error:
            pass_on(error)
            self.recorder.device = None

    # -- steps

    @quietly
    def open_step(self) -> None:
        """Begin a step now, if one may begin."""
        recorder = self.recorder
        if not self.stepping or recorder.step_start_ns or recorder.thread != get_ident():
            return
        began = recorder.end_gap(perf_counter_ns())
        if recorder.begin_step(began, None, 0):
            recorder.began = began

    @quietly
    def leave_step(self) -> None:
        """What comes now is no training: a step that has not trained so far is not begun yet."""
        self.end_deep_look()
        recorder = self.recorder
        if not recorder.trained:
            if recorder.began and recorder.is_running(recorder.began):
                recorder.abandon_step()
            recorder.began = 0

    @quietly
    def stepped(self, optimizer) -> None:
        """An optimizer has stepped, or its step was skipped."""
        recorder = self.recorder
        anchor = recorder.anchor()
        if anchor is not optimizer:
            # One optimizer is watched besides the anchor: where each parameter has its own, none of them steps twice.
            if self.others_at != recorder.steps or self.other() is None:
                self.other, self.others, self.others_at = weakref.ref(optimizer), 0, recorder.steps
            self.others += self.other() is optimizer
            if anchor is not None and self.others < OTHERS_MAX:
                return
            recorder.anchor, self.unsettled = weakref.ref(optimizer), True
        if recorder.thread == get_ident() or recorder.adopt():
            self._end_step()

    def _end_step(self) -> None:
        recorder = self.recorder
        # An interrupt may have come between the begin of a step and this note of it.
        began = recorder.step_start_ns if self.stepping else recorder.began
        recorder.began, samples = began, recorder.batch_samples
        recorder.trained = recorder.fetched = False
        recorder.after = NOTHING
        if not began or recorder.step_start_ns != began:
            recorder.began = 0
            return self.open_step()
        if self.before_first_step:
            self._run(self.before_first_step)
            self.before_first_step.clear()
        recorder.batch_samples = 0
        recorder.began = recorder.turn_step(samples if samples < SAMPLES_MAX else 0)
        recorder.step_ended()
        if recorder.steps - self.looked_at >= CHECK_STEPS or recorder.steps < self.looked_at:
            self.looked_at = recorder.steps
            self._run(self.now_and_then)
        if self.unsettled:
            self.unsettled = False
            self._run(self.after_step)
        recorder.plain = not self.unsettled

    @quietly
    def end_deep_look(self) -> None:
        """A step that something unusual came into is not traced."""
        if self.deep_look is not None:
            self.deep_look.leave()

    def count(self, what: str, number: int, add: bool = False) -> None:
        """Write one of the page's SAMPLING words."""
        words = self.recorder.words
        if words is not None:
            word = page.W_SAMPLING + page.SAMPLING.index(what)
            words[word] = words[word] + number if add else number

    def _count_all(self) -> None:
        self.count("micro_batches", self.recorder.micro_batches)
        self.count("skipped_steps", self.skipped_steps)

    def _run(self, functions: list) -> None:
        for function in functions:
            try:
                function()
            except Exception as error:
                pass_on(error)
                self.session.warn(f"automatic: {type(error).__name__}: {short_repr(error)}")

    @quietly
    def go_on_after(self, step) -> None:
        """The work up to `step` was restored: the first step of this attempt is `step + 1`."""
        index = whole(step, -1, STEP_MAX)
        recorder = self.recorder
        if index is None or recorder.thread != get_ident() or recorder.steps or recorder.step_next > index:
            return
        if recorder.began and recorder.is_running(recorder.began):
            recorder.renumber(index)
        else:
            self.session.resume(index)

    def by_hand(self) -> None:
        """The user bounds steps: none is begun here from now on."""
        if self.stepping:
            self.stepping = False
            self.end_deep_look()
            self.budget.switch_phases(True)
            self.stop_evaluation()
            recorder = self.recorder
            if recorder.began and recorder.is_running(recorder.began):
                recorder.abandon_step()
            recorder.began, recorder.plain, self.unsettled = 0, False, True

    def meet_compiler(self) -> None:
        """A compiler is about to trace: from here on Python functions, which it can go through, call the hooks."""
        self._run(self.before_compiler)
        self.before_compiler.clear()

    # -- training calls

    @quietly
    def lost_sight(self) -> None:
        """A backward pass of which no forward pass was seen: there are root modules that are not known."""
        for function in self.unknown_roots:
            function()

    @quietly
    def trains(self) -> None:
        """A call that trains: an evaluation is over, a step runs."""
        if self.recorder.evaluating:
            self.stop_evaluation()
        if not self.recorder.step_start_ns:
            self.open_step()

    # -- evaluation

    @quietly
    def start_evaluation(self) -> None:
        """From here on it is evaluation, until `stop_evaluation`. Not inside a phase of the user's."""
        recorder = self.recorder
        if recorder.evaluating or recorder.thread != get_ident():
            return
        self.end_deep_look()
        if recorder.depth:
            return
        self.leave_step()
        recorder.after = NOTHING
        recorder.evaluating = True
        self.evaluation.__enter__()

    @quietly
    def stop_evaluation(self) -> None:
        recorder = self.recorder
        if recorder.evaluating and recorder.thread == get_ident():
            self._close(self.evaluation)
            recorder.evaluating = False

    def _close(self, phase) -> None:
        """End a phase that was held open, if it is: an interrupt may have come before this one did so."""
        if self.recorder.current == phase.total:
            phase.__exit__(None, None, None)
        else:
            self.recorder.close_below(phase.total)

    # -- what runs around an optimizer's step

    @quietly
    def optimizer_begins(self, optimizer) -> None:
        """Called before `optimizer.step`; nested for an optimizer that wraps another."""
        recorder = self.recorder
        if recorder.optimizer_depth and self.in_a_step():
            recorder.optimizer_depth += 1
            return
        self.forget_raised()
        if recorder.evaluating or not recorder.step_start_ns:
            self.trains()
        recorder.optimizer_depth, recorder.optimizer = 1, weakref.ref(optimizer)
        if recorder.after == BACKWARD:
            recorder.gap = self.optimizer_word
        recorder.trained = True
        self.optimizer.__enter__()

    @quietly
    def optimizer_ends(self, optimizer) -> None:
        """Called after `optimizer.step` returned, on whichever thread."""
        recorder = self.recorder
        recorder.optimizer_steps += 1
        if recorder.optimizer_depth > 1:
            recorder.optimizer_depth -= 1
            if recorder.optimizer() is optimizer:
                return  # The step of its base class, called by its own.
        elif recorder.optimizer_depth:
            self.forget_raised()
        self.stepped(optimizer)

    @quietly
    def forget_raised(self) -> None:
        """Close the phase of an optimizer's step, which one that raised has left open."""
        recorder = self.recorder
        if recorder.optimizer_depth:
            if recorder.thread == get_ident():
                self._close(self.optimizer)
            recorder.optimizer_depth, recorder.optimizer = 0, None

    # -- the end

    def ends(self) -> None:
        """The measurement ends: nothing of the training that was seen has a part in the next one."""
        recorder = self.recorder
        self.end_deep_look()
        self.budget.switch_phases(True)
        if recorder.unseen:
            self._run([self.unseen.look])
        self._run([self._count_all])
        if self.deep_look is not None:
            self.deep_look.close()
        if self.training is not None:
            self.training.release()
        self.stop_evaluation()
        recorder.evaluating = recorder.trained = recorder.fetched = False
        recorder.began, recorder.anchor, self.unsettled, recorder.plain = 0, _nobody, True, False
        if self.loaders is not None:
            self.loaders.forget()

    def remove(self) -> None:
        """Put every replaced attribute back. A step that runs has no part in what is measured from now on."""
        recorder = self.recorder
        self.end_deep_look()
        self.budget.switch_phases(True)
        self.stop_evaluation()
        if recorder.thread == get_ident():
            self.forget_raised()
            if recorder.began and recorder.is_running(recorder.began):
                recorder.abandon_step()
        recorder.trained = recorder.fetched = recorder.plain = False
        recorder.began, recorder.after, recorder.iterator = 0, NOTHING, None
        self.removed = True
        self.patches.restore()


def _nobody() -> None:
    """A reference to what is gone."""


def _call(function, argument):
    return function(argument)
