"""Finds the bounds of training steps, and evaluations, from the calls that the patches in frameworks/ report.

The *anchor* is the first optimizer that stepped. A step ends when the anchor has stepped (`optimizer_stepped`), and the
next one begins there, so steps touch and gradient accumulation stays in one step. If another optimizer steps OTHERS_MAX
times without the anchor, it becomes the anchor. Time of an evaluation or a checkpoint between steps is outside steps.

An evaluation begins at a call with gradients off on a batch that is not the training loader's, or at `eval()` of a
module that was trained, and lasts until the next training call. A rollout is the same, of a model in training mode and
without a loader of its own, or of one that generates what it is trained on: until that is known, generating counts as
an evaluation, which becomes a rollout at the training call on its tokens (generation.py). This module does not import PyTorch.

Where no loader is known, time in no phase before a forward pass may be the making of the batch: it is charged to the
phase BEFORE_FORWARD, unless a phase of another kind lies in it. Where there is no optimizer, a block without
gradients or a pass over the parameters after a backward pass is nearly always their update: ESTIMATED_OPTIMIZER.
"""

from __future__ import annotations

import functools
import weakref
from _thread import get_ident
from time import perf_counter_ns
from typing import Any

from goodput.defaults import BEFORE_FORWARD, ESTIMATED_OPTIMIZER, FLOPS_NOT_SEEN
from goodput.rank_page import page
from goodput.sdk.automatic.compiled_optimizer import CompiledOptimizers
from goodput.sdk.automatic.generation import Generations
from goodput.sdk.automatic.overhead_budget import CHECK_STEPS, Budget, budget_share
from goodput.sdk.automatic.patch import Patches
from goodput.sdk.automatic.read_ahead import ReadAhead
from goodput.sdk.automatic.training_thread import TrainingThread
from goodput.sdk.recorder.hot_path import TrainingState
from goodput.sdk.recorder.messages import short_repr
from goodput.sdk.recorder.recorder import SAMPLES_MAX, STEP_MAX, State, checked_int
from goodput.sdk.recorder.training_calls import BACKWARD, FORWARD, dead_reference
from goodput.user_exceptions import reraise_from_handler

GENERATES_STEPS_MAX = 64  # between two generations, above which they are samples to look at, not rollouts
OTHERS_MAX = 16  # steps of another optimizer without one of the anchor's, after which it becomes the anchor


def warn_on_error(method):
    """Decorate a method: its exceptions become warnings and are not raised into the training."""

    @functools.wraps(method)
    def call(self, *args):
        try:
            return method(self, *args)
        except Exception as error:
            reraise_from_handler(error)
            self.session.warn(f"automatic: {type(error).__name__}: {short_repr(error)}")

    return call


class Automatic:
    """The automatic instrumentation of one process.

    stepping    whether steps are detected here; False once the user bounds them with goodput.step or goodput.steps
    trainer_counts  whether steps end where the trainer of a framework counts one, not where the anchor has stepped

    training        what is known of the running step, which the compiled hooks read and change: plain_training.py
    """

    def __init__(self, session, phase):
        self.session, self.recorder, self.patches = session, session.recorder, Patches()
        self.training = self.recorder.training or TrainingState(self.recorder)
        self.training.installed()
        self.recorder.set_training(self.training)
        self.gaps = self.training.gaps
        session.declare(flops_unknown=FLOPS_NOT_SEEN)
        self.loader, self.h2d, self.forward = phase("loader"), phase("h2d"), phase("forward")
        self.backward, self.optimizer = phase("backward"), phase("optimizer")
        self.communication = phase("communication")
        self.checkpoint, self.restore = phase("checkpoint"), phase("restore")
        self.evaluation, self.compile, self.rollout = phase("evaluation"), phase("compile"), phase("rollout")
        self.open_phase = self.evaluation  # the one that is open while `evaluating`
        self.evaluated = 0  # calls and batches in it
        self.steps_before = self.recorder.steps  # those before the instrumentation was installed
        self.rollout_step = self.steps_before  # the number of steps at the last rollout
        self.generations = Generations(self)
        # Whether the model was called in training mode without gradients before the first step, as on observations.
        self.observes = False
        self.forward_word, self.optimizer_word = self.forward.total, self.optimizer.total
        self.stepping, self.trainer_counts, self.skipped_steps = True, False, 0
        # An optimizer besides the anchor, its steps since the anchor's last one, and recorder.steps at that time.
        self.other, self.others, self.others_at = dead_reference, 0, 0
        self.progress = None  # trainer_progress.TrainerProgress, if the trainer of a framework runs
        self.loaders = None  # frameworks.torch.loader.Loaders
        self.roots = None  # frameworks.torch.forward.RootModules
        self.deep_look = None  # deep_look.DeepLook, if GOODPUT_DEEP_LOOK is set
        self.has_optimizer = False
        # Whether the parameters are updated without an optimizer; a module is the anchor.
        # Then also the number of backward passes whose gradients were used.
        self.by_hand, self.used_passes = False, 0
        self.update_seen, self.begins_by_hand = False, []  # the latter are called once when it is found
        # Set by the patch: whether an optimizer's step is inside another.
        self.is_nested_step = lambda: False
        # Set by frameworks/torch/workers.py: fetch a batch and measure the wait; another training iterator is used.
        self.fetch_batch = lambda advance, iterator: advance(iterator)
        self.iterator_changed = lambda iterator: None
        self.waiting, self.removed = 0, False  # the thread beside the step thread that waits for other ranks
        # A sdk.recorder.collectives.CollectiveRecords, if calls of process groups are recorded.
        self.records = None
        self.collectives: dict = {}  # those that torch.distributed carries, each with what it replaced
        self.needs_after_step = True
        self.after_step: list = []  # called after a step if `needs_after_step`
        self.before_first_step: list = []  # called once before the first step ends
        self.restored: dict = {}  # numbers in files loaded before it whose step is unknown, by fingerprint
        self.first_step_held: list = []  # called where the first step may have ended, if that is not known yet
        self.at_end: list = []  # called when the page has its end
        self.before_compiler: list = []  # called once before a compiler traces for the first time
        self.compiled_optimizers = CompiledOptimizers(self)
        self.training_thread, self.read_ahead = TrainingThread(self), ReadAhead(self.recorder, self.training)
        self.gradients: Any = None  # frameworks.torch.updates.GradientUse, if backward passes are measured
        self.budget = Budget(self, budget_share(session.environ, session.warn))
        self.last_check_step = 0
        self.device_used = False  # whether the model's parameters are on a device
        # Called after every CHECK_STEPS steps.
        self.periodic: list = [self.count_all, self.budget.check, self.judge_loader]
        self.after_step.append(self.judge_loader)

    def on_step_thread(self) -> bool:
        """Whether this is the step thread. Starts the session if it was not."""
        return self.recorder.thread == get_ident() or self.recorder.ready()

    def allow_start(self) -> None:
        """This process is a rank, even if it was forked before its parent's session started: start it."""
        self._forget_fork()
        self.on_step_thread()

    def _forget_fork(self) -> None:
        if self.recorder.state == State.FORKED_EARLY:
            self.recorder.set_state(State.NOT_STARTED)

    def optimizer_created(self) -> None:
        """The first training call from here on opens the page; the rank may not be known earlier."""
        self.has_optimizer = True
        self._forget_fork()

    def may_start(self) -> bool:
        """Whether a training call runs on the step thread; the first one opens the page."""
        recorder = self.recorder
        if recorder.thread == get_ident():
            return True
        return recorder.state == State.NOT_STARTED and self.has_optimizer and self.on_step_thread()

    def may_train(self, optimizer=None) -> bool:
        """Whether a backward pass, or a step of this optimizer, runs on the step thread, which this thread may become."""
        return self.may_start() or self.training_thread.claim(optimizer)

    def notify_device(self, word: int) -> None:
        """Record a boundary on the device clock only, from any thread."""
        try:
            if self.recorder.device is not None:
                self.recorder.device(word)
        except Exception as error:
            reraise_from_handler(error)
            self.recorder.set_device(None)

    # -- steps

    @warn_on_error
    def open_step(self) -> None:
        """Begin a step now, unless one is running or the user bounds steps."""
        recorder = self.recorder
        if not self.stepping or recorder.step_start_ns or recorder.thread != get_ident():
            return
        began = recorder.end_gap(perf_counter_ns())
        if recorder.begin_step(began, None, 0):
            self.training.step_began(began)
        if self.gradients is not None and self.gradients.watches:
            self.training.set_unhooked_steps(True)  # Else a compiled hook would not call the watch.

    @warn_on_error
    def leave_step(self) -> None:
        """Work other than training follows: drop the running step if it has not trained yet."""
        self.cancel_deep_look()
        self.compiled_optimizers.confirm()
        if self.generations.left_ns:
            self.stop_evaluation()
        self.end_step_by_hand()
        if not self.training.trained:
            self._abandon_step()

    def _abandon_step(self) -> None:
        """Drop the running step if it was begun here."""
        recorder, training = self.recorder, self.training
        self.compiled_optimizers.confirm()
        if training.began and recorder.is_running(training.began):
            recorder.abandon_step()
        training.step_dropped()

    @warn_on_error
    def optimizer_stepped(self, optimizer, is_guess: bool = False) -> None:
        """An optimizer has stepped, or its step was skipped for infinite gradients: the anchor's ends the step.

        `is_guess` is whether no hook was called.
        """
        if self.trainer_counts:
            return
        if not is_guess:
            self.compiled_optimizers.discard()
        recorder = self.recorder
        anchor = self.training.anchor()
        if anchor is not optimizer:
            # Only one other optimizer is counted: where each parameter has its own, none of them steps twice.
            if self.others_at != recorder.steps or self.other() is None:
                self.other, self.others, self.others_at = weakref.ref(optimizer), 0, recorder.steps
            self.others += self.other() is optimizer
            if anchor is not None and self.others < OTHERS_MAX:
                return
            self.training.set_anchor(weakref.ref(optimizer))
            self.needs_after_step = True
        if recorder.thread == get_ident() or recorder.adopt():
            self.compiled_optimizers.step_ended() if is_guess else self.end_step()

    def hold_step(self) -> None:
        """The running step may have ended here: keep what `record_steps` needs, and go on as at a step's end."""
        recorder, training = self.recorder, self.training
        began = recorder.step_start_ns if self.stepping else training.began
        training.step_ended()
        if not began or not recorder.is_running(began):
            return self.open_step()
        training.step_began(began)
        samples = training.fetches.take_samples()
        self.gaps.step_ended()
        if not self.compiled_optimizers.held:
            self._attempt_each(self.first_step_held)
        self.compiled_optimizers.held.append(recorder.hold_step(samples if samples < SAMPLES_MAX else 0))
        self._attempt_each(self.after_step)

    def record_steps(self, held: list[tuple]) -> None:
        """Record steps that ended earlier, the first of which began where the running one did."""
        recorder, training = self.recorder, self.training
        if not training.began or not recorder.is_running(training.began):
            return
        if self.before_first_step:
            self.set_up(self.before_first_step)
            self.before_first_step.clear()
        training.step_began(recorder.record_steps(held))
        recorder.step_ended()

    def end_step(self) -> None:
        """End the running step and begin the next one."""
        recorder, training = self.recorder, self.training
        # A signal handler may have interrupted open_step between begin_step and the assignment of `began`.
        began = recorder.step_start_ns if self.stepping else training.began
        training.step_began(began)
        training.step_ended()
        if not began or recorder.step_start_ns != began:
            training.step_dropped()
            return self.open_step()
        if self.before_first_step:
            self.set_up(self.before_first_step)
            self.before_first_step.clear()
        samples = training.fetches.take_samples()
        training.step_began(recorder.next_step(samples if samples < SAMPLES_MAX else 0))
        self.gaps.step_ended()
        recorder.step_ended()
        if not 0 <= recorder.steps - self.last_check_step < CHECK_STEPS:
            self.last_check_step = recorder.steps
            self._attempt_each(self.periodic)
        if self.needs_after_step:
            self.needs_after_step = False
            self._attempt_each(self.after_step)
        training.set_routine(not self.needs_after_step and not self.trainer_counts)

    def call_after_step(self) -> None:
        """The next step's end is not routine: call `after_step`."""
        self.needs_after_step = True
        self.training.set_routine(False)

    @warn_on_error
    def update_begins(self) -> int:
        """A pass over the parameters or a block without gradients begins, which may be the update by hand.

        Returns when it began, 0 if it cannot be the update.

        What ran since the backward pass is work on gradients, or the making of a batch, as before an optimizer's step.
        """
        recorder, training = self.recorder, self.training
        is_outside = not (training.evaluating or training.inside or recorder.depth or recorder.phases_off)
        if recorder.thread != get_ident() or training.after != BACKWARD or not is_outside:
            return 0
        self.gaps.claim(self.optimizer_word)
        self.optimizer.run(int)
        return recorder.last_ns

    @warn_on_error
    def update_ended(self, began_ns: int) -> None:
        """What began at `began_ns` is over: it was the update, if no phase of another kind lies in it."""
        recorder = self.recorder
        if recorder.thread != get_ident() or recorder.last_ns != began_ns or recorder.phases_off:
            return
        phases = self.session.phases
        if ESTIMATED_OPTIMIZER in phases.by_name or len(phases.states) < page.USER_PHASES_MAX:
            recorder.charge_last(phases.define(ESTIMATED_OPTIMIZER, "productive").total)
        if not self.update_seen:
            self.update_seen = True
            self.call_after_step()

    def judge_loader(self) -> None:
        """Decide whether the time before a forward pass has a phase of its own.

        Not if a loader was seen, nor on the host's clock alone where a device computes: the host may wait for it there.
        Nor if the parameters are updated by hand, and no update was seen: it may be part of that time.
        """
        recorder = self.recorder
        is_blind = (self.device_used and recorder.device is None) or (self.by_hand and not self.update_seen)
        is_known = (
            recorder.words is None or recorder.words[self.loader.total] or self.training.fetches.read_ahead
        )
        if is_known or is_blind:
            self.gaps.set_batch_word(0)
        elif not self.gaps.batch_word and recorder.thread == get_ident():
            phases = self.session.phases
            if BEFORE_FORWARD in phases.by_name or len(phases.states) < page.USER_PHASES_MAX:
                self.gaps.set_batch_word(phases.define(BEFORE_FORWARD, "unattributed").total)

    def claim_batch(self) -> bool:
        """The time since the last boundary may be the making of a batch, if nothing contradicts it."""
        recorder = self.recorder
        if self.training.fetches.read_ahead and not (recorder.depth or recorder.phases_off):
            recorder.charge_until(self.loader.total, min(self.read_ahead.arrived_ns(), perf_counter_ns()))
        return self.gaps.claim_batch()

    def claim_before_zero_grad(self) -> None:
        """Gradients are cleared: decide what the time since the last boundary is."""
        after = self.training.after
        if after == BACKWARD:
            self.gaps.claim(self.optimizer_word)
        elif not self.claim_batch() and after == FORWARD:
            self.gaps.claim(self.forward_word)  # The loss.

    def begin_by_hand(self) -> None:
        """A loop trains without an optimizer: the next training call may open the page."""
        if not self.has_optimizer:
            self.by_hand = True
            self.optimizer_created()
            self._attempt_each(self.begins_by_hand)
            self.begins_by_hand.clear()

    @warn_on_error
    def poll_steps(self) -> None:
        """A backward pass or a fetch of a batch begins: end steps that called no hook."""
        self.compiled_optimizers.poll()
        if self.gradients is not None:
            self.gradients.poll()

    def has_gradients(self) -> bool:
        """Whether a loop without an optimizer has computed gradients since its last step ended."""
        return self.by_hand and self.training.micro_batches != self.used_passes

    def end_step_by_hand(self) -> None:
        """End the step of a loop without an optimizer, after its last backward pass."""
        if self.has_gradients():
            self.used_passes = self.training.micro_batches
            self.end_step()

    @warn_on_error
    def cancel_deep_look(self) -> None:
        """End a running deep look without a result: the traced step is not an ordinary one."""
        if self.deep_look is not None:
            self.deep_look.cancel()

    def count(self, what: str, number: int, add: bool = False) -> None:
        """Set one of the page's SAMPLING words, or add to it."""
        words = self.recorder.words
        if words is not None:
            word = page.W_SAMPLING + page.SAMPLING.index(what)
            words[word] = words[word] + number if add else number

    def count_all(self) -> None:
        self.count("micro_batches", self.training.micro_batches)
        self.count("skipped_steps", self.skipped_steps)

    def attempt(self, function, *args):
        """Call it; an exception becomes a warning, and the result None."""
        try:
            return function(*args)
        except Exception as error:
            reraise_from_handler(error)
            self.session.warn(f"automatic: {type(error).__name__}: {short_repr(error)}")

    def _attempt_each(self, functions: list, *args) -> None:
        for function in functions:
            self.attempt(function, *args)

    @warn_on_error
    def set_up(self, functions: list, *args) -> None:
        """Call what is done once, in a first step. Its time is `compile`, as all that only a first step has."""
        recorder = self.recorder
        is_measured = recorder.thread == get_ident() and not recorder.phases_off
        if is_measured:
            batch_word = self.gaps.batch_word
            is_batch = self.gaps.claimed == batch_word and not recorder.depth
            recorder.charge_last(batch_word if is_batch else recorder.current)
        self._attempt_each(functions, *args)
        if is_measured:
            recorder.charge_last(self.compile.total)

    @warn_on_error
    def resume_after(self, step) -> None:
        """The work up to `step` was restored: the first step of this attempt has index `step + 1`."""
        index = checked_int(step, -1, STEP_MAX)
        recorder = self.recorder
        if index is None or recorder.thread != get_ident() or recorder.steps or recorder.step_next > index:
            return
        began = self.training.began
        if began and recorder.is_running(began):
            recorder.renumber(index)
        else:
            self.session.resume(index)

    def use_manual_steps(self) -> None:
        """The user bounds steps from now on; stop detecting them."""
        if self.stepping:
            self.stepping = False
            self._stop_measuring()
            self._abandon_step()
            self.call_after_step()

    def use_trainers_steps(self) -> None:
        """The trainer of a framework calls `end_step` from now on."""
        # Not routine, so that compiled hooks end no step either.
        self.trainer_counts = True
        self.training.set_routine(False)
        self._abandon_step()
        self.open_step()

    def _stop_measuring(self) -> None:
        self.cancel_deep_look()
        self.budget.switch_phases(True)
        self.stop_evaluation()

    def before_compilation(self) -> None:
        """A compiler is about to trace: replace the compiled hooks by Python functions that it can trace."""
        self._attempt_each(self.before_compiler)
        self.before_compiler.clear()

    # -- training calls

    @warn_on_error
    def search_roots_again(self) -> None:
        """A backward pass came without a forward pass: some root modules are not known."""
        if self.roots is not None:
            self.roots.restart_search()

    @warn_on_error
    def training_call(self) -> None:
        """A call that trains: end an evaluation, and begin a step if none is running."""
        if self.training.evaluating:
            self.stop_evaluation()
        if not self.recorder.step_start_ns:
            self.open_step()

    # -- evaluation

    @warn_on_error
    def start_evaluation(self) -> None:
        """Open the phase `evaluation` until `stop_evaluation`; not inside a phase of the user."""
        self._leave_training(self.evaluation)

    @warn_on_error
    def start_rollout(self) -> None:
        """As for evaluations, for the phase `rollout`. An evaluation turns out to be one if only its first call is over."""
        recorder, self.rollout_step = self.recorder, self.recorder.steps
        is_first = self.training.evaluating and self.evaluated == 1 and self.open_phase is self.evaluation
        if is_first and recorder.current == self.evaluation.total and recorder.thread == get_ident():
            recorder.rename(self.rollout)
            self.open_phase = self.rollout
        else:
            self._leave_training(self.rollout)

    def may_roll_out(self) -> bool:
        """Whether generating now feeds the next update: before the first one, or not long after the last rollout."""
        return self.recorder.steps - self.rollout_step <= GENERATES_STEPS_MAX

    def _leave_training(self, phase) -> None:
        recorder, training = self.recorder, self.training
        if recorder.thread != get_ident():
            return
        self.generations.left_ns = 0
        if training.evaluating:
            if phase is self.open_phase or (self.progress is not None and self.progress.evaluating):
                return
            self._close(self.open_phase)
            training.evaluation_ended()
        self.cancel_deep_look()
        if recorder.depth:
            return
        self.leave_step()
        training.evaluation_began()
        self.open_phase, self.evaluated = phase, 0
        phase.__enter__()

    @warn_on_error
    def stop_evaluation(self) -> None:
        if self.training.evaluating and self.recorder.thread == get_ident():
            self.generations.name_phase()
            self._close(self.open_phase)
            self.training.evaluation_ended()

    def _close(self, phase) -> None:
        """Exit a phase that may not be the innermost one: an interrupt can have left others open."""
        if self.recorder.current == phase.total:
            phase.__exit__(None, None, None)
        else:
            self.recorder.close_below(phase.total)

    # -- the optimizer

    @warn_on_error
    def optimizer_begins(self, optimizer) -> None:
        """Called before `optimizer.step`; nested for an optimizer that wraps another."""
        recorder, training = self.recorder, self.training
        if training.optimizer_depth and self.is_nested_step():
            training.nested_step_began()
            return
        self.close_failed_step()
        if training.evaluating or not recorder.step_start_ns:
            self.training_call()
        training.optimizer_began(optimizer)
        if training.after == BACKWARD or self.gaps.may_be_batch:
            self.gaps.claim(self.optimizer_word)
        self.optimizer.__enter__()

    @warn_on_error
    def optimizer_ends(self, optimizer) -> None:
        """Called after `optimizer.step` returned, on whichever thread."""
        training = self.training
        training.optimizer_stepped()
        if self.recorder.thread != get_ident():
            pass  # Another thread may be inside an optimizer's step.
        elif training.optimizer_depth > 1:
            training.nested_step_ended()
            if training.optimizer() is optimizer:
                return  # It called the step of its base class.
        elif training.optimizer_depth:
            self.close_failed_step()
        self.optimizer_stepped(optimizer)

    @warn_on_error
    def close_failed_step(self) -> None:
        """Close the phase `optimizer` if the last optimizer step raised, since no post hook was called."""
        if self.training.optimizer_depth:
            if self.recorder.thread == get_ident():
                self._close(self.optimizer)
            self.training.optimizer_ended()

    # -- the end

    def end(self) -> None:
        """The measurement ends. Forget the training, so that nothing carries over into the next one."""
        if self.deep_look is not None:
            self.deep_look.close()
        self.budget.switch_phases(True)
        if self.training.unhooked_steps:
            self.poll_steps()
        self.attempt(self.end_step_by_hand)
        self.attempt(self.compiled_optimizers.confirm)
        self.compiled_optimizers.forget()
        self.attempt(self.count_all)
        if self.progress is not None:
            self.progress.end_evaluation()
        self.stop_evaluation()
        self.training.training_ended()
        self.gaps.set_batch_word(0)
        self.used_passes, self.update_seen = 0, False
        self.generations.forget()
        self.call_after_step()
        if self.loaders is not None:
            self.loaders.forget()

    def ended(self) -> None:
        """The page has its end."""
        self._attempt_each(self.at_end)

    def remove(self) -> None:
        """Restore every replaced attribute, and drop the running step."""
        recorder = self.recorder
        self._stop_measuring()
        if recorder.thread == get_ident():
            self.close_failed_step()
            self._abandon_step()
        self.training.removed()
        self.gaps.set_batch_word(0)
        self.removed = True
        self.patches.restore()
