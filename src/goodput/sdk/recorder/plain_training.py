"""What step detection knows between two calls of the training loop, in Python: where the extension was not built
(hot_path.py), and what the compiled classes (_hooks.c) are compared with.

The hooks, in C or in Python, read these fields, and change them by the methods alone: each field has one writer. Only
the step thread calls them, except where a method says otherwise.
"""

from __future__ import annotations

import weakref

from goodput.sdk.recorder.plain import Gaps
from goodput.sdk.recorder.training_calls import BACKWARD, FORWARD, NOTHING, dead_reference

TYPE_CHECKING = False  # See plain.py.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class FetchState:
    """Batches that are fetched, and which of them are measured.

    fetching    whether a batch is being fetched; a fetch or another call of a module inside it is part of it
    fetched     whether the running step has fetched a batch of the training loader
    read_ahead  whether another thread fetches batches
    iterator    weak reference to the training iterator used last, or None
    counting    whether the iterator's batches count as samples
    samples     of the batches fetched for the running step
    sampling    whether only some batches of the iterator are measured
    skips_left  batches to skip before one is measured
    skipped_ns  time that the skipped quick batches took
    """

    def __init__(self):
        self.fetching = self.fetched = self.read_ahead = self.counting = self.sampling = False
        self.iterator: Any = None
        self.samples = self.skips_left = self.skipped_ns = 0

    def begin(self) -> None:
        self.fetching = True

    def end(self) -> None:
        self.fetching = False

    def batch_came(self, samples: int) -> None:
        """A batch to train on was fetched, with so many samples to count."""
        self.fetched = True
        self.samples += samples

    @property
    def counts_next(self) -> bool:
        """Whether the samples of the next batch count: with several loaders in a step, those of the first do."""
        return self.counting or not self.samples

    def add_samples(self, samples: int) -> None:
        self.samples += samples

    def take_samples(self) -> int:
        """The samples of the step that ends; those of the next one are counted from 0 on."""
        samples, self.samples = self.samples, 0
        return samples

    def step_ended(self) -> None:
        self.fetched = False

    def set_iterator(self, reference, counting: bool) -> None:
        """Batches come from another iterator, of which there is a weak reference, or None."""
        self.iterator, self.counting = reference, counting

    def set_read_ahead(self, on: bool) -> None:
        """From whichever thread."""
        self.read_ahead = on

    def set_sampling(self, on: bool, continues: bool) -> None:
        """Measure some batches only; `continues` is whether the count of skipped ones goes on."""
        self.sampling = on
        if not continues:
            self.skips_left = self.skipped_ns = 0

    def skips(self, iterator) -> bool:
        """Whether the next batch of this iterator is not measured."""
        return self.skips_left > 0 and self.iterator is not None and self.iterator() is iterator

    def skipped(self, iterator, ns: int, is_quick: bool) -> None:
        """A batch was fetched in `ns` without measuring why. After a slow one the next one is measured."""
        if self.skips(iterator):
            self.skips_left = self.skips_left - 1 if is_quick else 0
            self.skipped_ns += ns if is_quick else 0

    def measured(self, iterator, skips: int) -> int:
        """A batch was measured: skip the next `skips`. Returns the ns of those skipped before it."""
        if not self.sampling or self.iterator is None or self.iterator() is not iterator:
            return 0
        skipped_ns, self.skipped_ns, self.skips_left = self.skipped_ns, 0, skips
        return skipped_ns

    def forget_iterator(self) -> None:
        self.iterator, self.sampling = None, False

    def page_opened(self) -> None:
        self.skips_left = self.skipped_ns = self.samples = 0
        self.fetching = False

    def thread_changed(self) -> None:
        self.fetching = self.fetched = False


class TrainingState:
    """The running step as the training calls show it.

    clock            the recorder
    fetches          the FetchState
    gaps             the Gaps
    began            start of the step that was begun automatically, 0 if none is running
    after            the last training call: NOTHING, FORWARD or BACKWARD
    inside           whether a root module's forward or a backward pass is running; calls inside it are part of it
    evaluating       whether the phase `evaluation` or `rollout` is open
    trained          whether the running step has trained
    anchor           weak reference to the optimizer that bounds steps, or to the module of a loop without one
    optimizer        weak reference to the optimizer whose step is running, or None
    optimizer_depth  nested optimizer steps that are running
    optimizer_steps  optimizer steps completed since the instrumentation was installed
    micro_batches    backward passes in this page
    reducers         modules whose gradients are reduced in a backward pass
    preparing        whether optimizer steps are not of the training
    unhooked_steps   whether an optimizer may step without a hook
    routine          whether the end of the step needs no Python code
    other_work       a bit for each phase, by index, in which calls of modules are not training
    """

    def __init__(self, clock):
        self.clock, self.fetches, self.gaps = clock, FetchState(), Gaps()
        self.began = self.after = self.other_work = 0
        self.optimizer_depth = self.optimizer_steps = self.micro_batches = self.reducers = 0
        self.inside = self.evaluating = self.trained = False
        self.preparing = self.unhooked_steps = self.routine = False
        self.anchor: Any = dead_reference
        self.optimizer: Any = None

    @property
    def in_other_work(self) -> bool:
        """Whether a batch is being fetched, or a phase of `other_work` is open beside the one that `evaluating` stands for.

        Forward and backward passes are part of that work then, and not of the training.
        """
        return self.fetches.fetching or self.clock.count_open(self.other_work) > self.evaluating

    # -- steps

    def step_began(self, start_ns: int) -> None:
        self.began = start_ns

    def step_dropped(self) -> None:
        self.began = 0

    def step_ended(self) -> None:
        """The running step ends, or may have ended: what follows is of the next one."""
        self.trained, self.after = False, NOTHING
        self.fetches.step_ended()

    def set_routine(self, on: bool) -> None:
        """Off from whichever thread."""
        self.routine = on

    # -- training calls

    def train(self) -> None:
        """The running step trains."""
        self.trained = True

    def enter_call(self) -> None:
        self.inside = True

    def leave_call(self) -> None:
        self.inside = False

    def forward_ended(self, follows: bool, may_be_batch: bool) -> None:
        """As Gaps.forward_ended."""
        self.inside, self.after = False, FORWARD
        self.gaps.forward_ended(self.clock, follows, may_be_batch)

    def backward_began(self) -> None:
        self.trained = self.inside = True
        self.micro_batches += 1

    def backward_ended(self) -> None:
        self.inside, self.after = False, BACKWARD
        self.gaps.backward_ended(self.clock)

    def forget_last_call(self) -> None:
        """What follows does not continue the last training call."""
        self.after = NOTHING

    def reducer_created(self) -> None:
        """From whichever thread."""
        self.reducers += 1

    # -- evaluations

    def evaluation_began(self) -> None:
        self.after, self.evaluating = NOTHING, True

    def evaluation_ended(self) -> None:
        self.evaluating = False

    # -- the optimizer

    def set_anchor(self, reference) -> None:
        """Another optimizer bounds the steps; its weak reference, or `dead_reference` until one does."""
        self.anchor = reference

    def optimizer_began(self, optimizer) -> None:
        self.optimizer_depth, self.optimizer, self.trained = 1, weakref.ref(optimizer), True

    def nested_step_began(self) -> None:
        self.optimizer_depth += 1

    def nested_step_ended(self) -> None:
        self.optimizer_depth -= 1

    def optimizer_ended(self) -> None:
        """The phase `optimizer` is closed."""
        self.optimizer_depth, self.optimizer = 0, None

    def optimizer_stepped(self) -> None:
        """From whichever thread."""
        self.optimizer_steps += 1

    def set_preparing(self, on: bool) -> None:
        """Whether the steps of optimizers that follow only initialise them."""
        self.preparing = on

    def set_unhooked_steps(self, on: bool) -> None:
        self.unhooked_steps = on

    # -- the recorder, and the instrumentation

    def set_other_work(self, bits: int) -> None:
        self.other_work = bits

    def page_opened(self) -> None:
        """Another page is written from here on."""
        self.micro_batches = 0
        self.fetches.page_opened()
        self.gaps.page_opened()

    def thread_changed(self) -> None:
        """Another thread is the step thread: what the one before has begun is over."""
        self.began = self.optimizer_depth = self.after = 0
        self.evaluating = self.inside = self.trained = self.routine = False
        self.fetches.thread_changed()

    def installed(self) -> None:
        """The instrumentation is installed, maybe once more."""
        self.anchor, self.optimizer_steps = dead_reference, 0

    def training_ended(self) -> None:
        """The measurement ends: nothing carries over into the next one."""
        self.evaluating = self.trained = self.routine = False
        self.began, self.anchor = 0, dead_reference
        self.fetches.step_ended()

    def removed(self) -> None:
        """The instrumentation is removed."""
        self.trained = self.routine = False
        self.began = self.after = 0
        self.fetches.step_ended()
        self.fetches.set_iterator(None, self.fetches.counting)
        self.fetches.set_read_ahead(False)


class Slot:
    """The descriptor on torch.nn.Module: the base of the one in automatic/frameworks/torch/forward.py."""

    find: Callable | None  # of that one

    def __init__(self):
        self.roots: list[tuple] = []

    def __get__(self, module, owner=None):
        if module is None:
            return None
        for reference, call in self.roots:
            if reference() is module:
                return call
        if self.find is not None:
            call = self.find(module)
            if call is not None:
                return call
        return module.__dict__.get("_compiled_call_impl")
