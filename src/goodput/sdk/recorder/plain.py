"""The recorder in Python, where its extension was not built (hot_path.py), and what the compiled one is compared with: the
clock of the step thread, enter and exit of a phase, and what the time between phases is charged to.

About 0.7 us from enter to exit here, 0.1 us compiled (bench/trainer/phase.py). The rare cases (other threads, not
started) are in phase.Phase.

CPython runs signal handlers and switches threads only at calls and backward jumps. So a boundary makes its calls
first and then its stores, without a call in between: a handler that enters phases finds it either undone or done. The
handler may have moved the clock past the `now` of the boundary it interrupted, which then uses the later time.
CPython 3.10 runs handlers at forward jumps, too: there, what a handler with steps or phases of its own takes may be
charged to the inside of a step that lies beside it.
"""

from __future__ import annotations

import struct
from _thread import get_ident
from time import perf_counter_ns

from goodput.histograms.histogram import OCTAVE, OVERFLOW, bin_of_ns
from goodput.rank_page import page
from goodput.user_exceptions import reraise_from_handler

TYPE_CHECKING = False  # `typing` is not imported: it takes longer than all of goodput.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BLOCK_BITS = OCTAVE.bit_length() - 1
_LAST, _PHASE, _TOTALS, _BIAS = page.W_LAST, page.W_PHASE, page.W_TOTALS, page.STEP_BIAS
_pack_half = struct.Struct("<e").pack_into
_half = bytearray(2)
_half_bits = memoryview(_half).cast("H")
# The part of the forward passes of a loss that what lies between them may take, such as the code that joins two models.
FORWARD_DIVISOR = 4
# The part of a backward pass that other work before the optimizer may take, where the batch may be made there too.
BATCH_DIVISOR = 4
_FORWARD = page.W_TOTALS + page.PHASES.index("forward")


class Costs:
    """What measuring costs: as calibrated, and as measured of one step in so many (automatic/overhead_budget.py).

    phase_ns    cost of a phase
    step_ns     cost of a step
    reading_ns  cost of a clock reading
    extra_ns    cost in this page beyond that of phases and steps
    measuring   whether the cost of the running step is measured
    own_ns      time spent in boundaries of the measured step; compiled, in hooks too
    """

    def __init__(self):
        self.phase_ns = self.step_ns = self.reading_ns = self.extra_ns = self.own_ns = 0
        self.measuring = False

    def calibrate(self, phase_ns: int, step_ns: int, reading_ns: int) -> None:
        self.phase_ns, self.step_ns, self.reading_ns = phase_ns, step_ns, reading_ns

    def add(self, ns: int) -> None:
        """Something else than phases and steps has cost so much."""
        self.extra_ns += ns

    def measure(self, on: bool) -> None:
        """Measure the cost of the running step, from 0 on, or stop it."""
        self.own_ns, self.measuring = 0, on

    def count_since(self, from_ns: int) -> None:
        """Our own code has run since `from_ns`."""
        own_ns = perf_counter_ns() - from_ns - self.reading_ns
        self.own_ns += own_ns if own_ns > 0 else 0

    def step_ended(self, end_ns: int) -> None:
        """The measured step has ended at `end_ns`."""
        if self.measuring:
            self.count_since(end_ns)
            self.measuring = False

    def page_opened(self) -> None:
        self.extra_ns = 0


class Clock:
    """Charges time to the current phase. Only the thread whose ident is `thread` advances it.

    words          the page as u64, or None
    thread         ident of the step thread, 0 if there is none
    current        word of the phase that time is charged to
    last_ns        monotonic ns up to which time is charged
    stack          the phases below the current one
    child_ns       ns of inner phases in the current one
    entries        phases completed
    length         ns of the last outermost phase
    raised         whether a phase's body raised
    phases_off     whether all time is charged to the phase "none"
    columns        phases in use, which are copied into a step's record
    steps          steps completed in this page
    step_start_ns  start of the running step, 0 between steps
    step_end_ns    end of the last completed step
    step_next      index of the running or next step
    step_samples   samples of the running step
    device         called with the charged word at each boundary, or None; not called again after it raised
    gaps           decides what the time before an outermost phase is charged to , None: to no phase
    costs          what measuring costs
    """

    _words: Any
    count_first: Callable[[int], None]  # of Recorder

    def __init__(self):
        self.steps = self.step_start_ns = self.step_end_ns = self.step_next = self.step_samples = 0
        self.costs = Costs()
        self._words, self._backed = None, set()
        self.thread = self.last_ns = self.child_ns = self.entries = 0
        self.length, self.gaps = 0, None
        self.device: Any = None
        self.columns = 0
        self.phases_off = False
        self.current, self.raised = _TOTALS, False
        # A linked list of (frame below, current, began_ns, child_ns), since push and pop must not be calls.
        self.stack: Any = None

    @property
    def words(self):
        return self._words

    @words.setter
    def words(self, words) -> None:
        self._words, self._backed = words, set()

    @property
    def charged(self) -> int:
        return _TOTALS if self.phases_off else self.current

    @property
    def depth(self) -> int:
        depth, frame = 0, self.stack
        while frame is not None:
            depth, frame = depth + 1, frame[0]
        return depth

    def count_open(self, bits: int) -> int:
        """How many open phases have their bit, by index, among these."""
        phases, word, frame = 0, self.current, self.stack
        while frame is not None:
            phases += bits >> (word - _TOTALS) & 1
            frame, word = frame[0], frame[1]
        return phases

    def set_gaps(self, gaps) -> None:
        """Charge the time between phases as these gaps say."""
        self.gaps = gaps

    def reset(self) -> None:
        self.stack = None
        self.current, self.child_ns = _TOTALS, 0
        if self.gaps is not None:
            self.gaps.forget()

    def close_step(self, now_ns: int) -> int:
        """Close the running step: its record in the ring, sealed last, and one count of its length.

        Returns the moment of its end, which is later where a signal handler has moved the clock past `now_ns`.
        """
        words, number, start, many = self._words, self.steps + 1, self.step_start_ns, self.columns
        at = page.W_STEP_RING + (number - 1) % page.STEP_RING * page.STEP_WORDS
        seal, totals, outside = at + page.R_SEAL, at + page.R_TOTALS, at + page.R_OUTSIDE
        all_totals, all_outside = slice(_TOTALS, _TOTALS + many), slice(page.W_OUTSIDE, page.W_OUTSIDE + many)
        into_totals, into_outside = slice(totals, totals + many), slice(outside, outside + many)
        last_ns, costs = self.last_ns, self.costs
        if now_ns < last_ns:
            now_ns = last_ns
        words[_TOTALS if self.phases_off else self.current] += now_ns - last_ns
        self.last_ns = self.step_end_ns = words[_LAST] = now_ns
        samples = words[page.W_SAMPLES] + self.step_samples
        words[seal] = 0
        words[at + page.R_STEP] = self.step_next + _BIAS
        words[at + page.R_START], words[at + page.R_END], words[at + page.R_SAMPLES] = (
            start,
            now_ns,
            samples,
        )
        words[into_totals] = words[all_totals]
        words[into_outside] = words[all_outside]
        words[at] = words[seal] = number
        words[page.W_STEPS] = self.steps = number
        words[page.W_SAMPLES] = samples
        self.step_start_ns = words[page.W_STEP_START] = 0
        self.step_next += 1
        words[page.W_STEP_NEXT] = self.step_next + _BIAS
        words[page.W_COST] = self.entries * costs.phase_ns + number * costs.step_ns + costs.extra_ns
        self.count(page.W_HISTOGRAMS + bin_of_ns(now_ns - start))
        return now_ns

    def next_step(self, samples: int) -> int:
        """Close the running step, which handled `samples`, and begin the next one at its end."""
        self.step_samples = samples
        now_ns = self.close_step(perf_counter_ns())
        self.step_samples, self.step_start_ns = 0, now_ns
        self.words[page.W_STEP_START] = now_ns
        self.costs.step_ended(now_ns)
        return now_ns

    def notify_device(self, word: int) -> None:
        try:
            self.device(word)
        except Exception as error:
            reraise_from_handler(error)
            self.device = None

    def unwind(self, stack: tuple | None) -> None:
        """Close the phases above `stack` that an interrupt has left open."""
        now = perf_counter_ns()
        words, last, frame = self._words, self.last_ns, self.stack
        if get_ident() != self.thread or words is None:
            return
        current, child_ns = self.current, self.child_ns
        if now > last:
            words[_TOTALS if self.phases_off else current] += now - last
            self.last_ns = words[_LAST] = now
        while frame is not None and frame is not stack:
            frame, current, began_ns, child_ns = frame
            child_ns += now - began_ns if began_ns else 0
        self.stack, self.current, self.child_ns = frame, current, child_ns
        words[_PHASE] = 0 if self.phases_off else current - _TOTALS

    def close_below(self, total: int) -> None:
        """Remove an outer open phase: the phase above it will return to the phase below it."""
        above, frame = [], self.stack
        while frame is not None and frame[0] is not None:
            if frame[1] == total:
                below, current, _, _ = frame[0]
                frame = (below, current, *frame[2:])
                for passed in reversed(above):
                    frame = (frame, *passed[1:])
                self.stack = frame
                return
            above.append(frame)
            frame = frame[0]

    def count(self, word: int) -> None:
        if word >> _BLOCK_BITS in self._backed:
            self._words[word] += 1
        else:
            self.count_first(word)

    def back(self, word: int) -> None:
        """Note that the memory of a word's block is allocated."""
        self._backed.add(word >> _BLOCK_BITS)


class Phase:
    """A phase of one clock; `total` and `histogram` are its words."""

    _enter_elsewhere: Callable[[int], Phase]  # these three are of phase.Phase
    _exit_elsewhere: Callable[[int], None]
    _exit_out_of_order: Callable[[], None]

    def __init__(self, recorder: Clock, name: str, index: int, total: int, histogram: int):
        self.recorder, self.name, self.index = recorder, name, index
        self.total, self.histogram = total, histogram

    def __enter__(self) -> Phase:
        now = perf_counter_ns()
        clock = self.recorder
        if get_ident() != clock.thread:
            return self._enter_elsewhere(now)
        if clock.phases_off:
            clock.stack = (clock.stack, clock.current, 0, clock.child_ns)
            clock.current = self.total
            return self
        gaps = clock.gaps
        charged = clock.current if gaps is None else gaps.word_before(clock, self.total, now)
        words, current, last = clock._words, clock.current, clock.last_ns
        if now < last:
            now = last
        words[charged] += now - last
        clock.stack = (clock.stack, current, now, clock.child_ns)
        clock.child_ns = 0
        clock.current = self.total
        clock.last_ns = words[_LAST] = now
        words[_PHASE] = self.index
        costs = clock.costs
        if clock.device is None and not costs.measuring:
            return self
        try:
            if clock.device is not None:
                clock.notify_device(charged)
            if costs.measuring:
                costs.count_since(now)
        except BaseException:  # An interrupt in one of these calls: the body will not run.
            self.__exit__(None, None, None)
            raise
        return self

    def run(self, function, /, *args, **kwargs):
        """Call a function in the phase, which is closed even if an interrupt arrives in its exit."""
        clock = self.recorder
        stack = clock.stack
        try:
            with self:
                return function(*args, **kwargs)
        except BaseException:
            if clock.stack is not stack:
                clock.unwind(stack)
            raise

    def __exit__(self, kind, value, traceback) -> None:
        now = perf_counter_ns()
        clock = self.recorder
        if get_ident() != clock.thread:
            return self._exit_elsewhere(now)
        total, last = self.total, clock.last_ns
        if clock.current != total or clock.stack is None:
            return self._exit_out_of_order()
        if kind is not None:
            clock.raised = True
        if clock.phases_off:
            clock.stack, clock.current, _, clock.child_ns = clock.stack
            return None
        if now < last:
            now = last
        words = clock._words
        words[total] += now - last
        clock.stack, current, began_ns, child_ns = clock.stack
        length = now - began_ns if began_ns else 0
        own = length - clock.child_ns
        clock.child_ns = child_ns + length
        clock.current = current
        clock.entries += 1
        clock.last_ns = words[_LAST] = now
        if clock.stack is None:
            clock.length = length
        words[_PHASE] = current - _TOTALS
        if clock.device is not None:
            clock.notify_device(total)
        if not began_ns:  # Entered while phases were off: the length is unknown.
            return None
        try:
            _pack_half(_half, 0, own / 1e9)
            word = self.histogram + _half_bits[0]
        except OverflowError:
            word = self.histogram + OVERFLOW
        if word >> _BLOCK_BITS in clock._backed:
            words[word] += 1
            if clock.costs.measuring:
                clock.costs.count_since(now)
            return None
        return clock.count_first(word)


class Gaps:
    """The time between outermost phases of one process: which phase it is charged to.

    A hook claims the time before its phase for another phase, if it is short enough: that after a forward pass may be
    the loss, that after a backward pass the clipping of gradients, and that before a forward pass the making of a
    batch. Only the step thread calls these methods, except `set_batch_word`.

    claimed       word that the time before the next phase may be charged to, that of the phase "none" if it is unclaimed
    batch_word    word that the making of a batch is charged to, 0 where a loader is known
    may_be_batch  whether the time up to the next phase may be the making of a batch
    forward_ns    ns of forward passes since the last backward pass
    between_ns    ns between phases since the last backward pass, or the first forward pass after it
    backward_ns   ns of the last backward pass
    """

    def __init__(self):
        self.claimed, self.batch_word, self.may_be_batch = _TOTALS, 0, False
        self.forward_ns = self.between_ns = self.backward_ns = 0

    def claim(self, word: int) -> None:
        """The time before the next phase may belong to this word."""
        self.claimed = word

    def claim_batch(self) -> bool:
        """The time before the next phase is the making of a batch, if nothing contradicts it; returns whether it is."""
        if not self.may_be_batch or not self.batch_word:
            return False
        self.claimed = self.batch_word
        return True

    def drop_claim(self) -> None:
        self.claimed = _TOTALS

    def word_before(self, clock, total: int, now_ns: int) -> int:
        """The word to charge the time up to `now_ns` to, at which the phase with this total begins.

        The clock reads its own fields after this call, in which a signal handler may run.
        """
        claimed, current, gap_ns = self.claimed, clock.current, now_ns - clock.last_ns
        self.claimed = _TOTALS
        if clock.stack is not None:
            return current
        gap_ns = gap_ns if gap_ns > 0 else 0
        self.between_ns = between_ns = self.between_ns + gap_ns
        if claimed == _TOTALS:
            self.may_be_batch = False  # Work of another kind: what surrounds it need not be the batch.
            return current
        batch, length = self.may_be_batch and self.batch_word, self.backward_ns
        if batch:
            length //= BATCH_DIVISOR
        elif length < clock.length:
            length = clock.length
        if claimed == self.batch_word:
            return claimed
        if claimed == _FORWARD and total == claimed:
            # Between two forward passes: also the gaps together must be short, since they may be many.
            is_short = gap_ns <= clock.length and between_ns <= self.forward_ns // FORWARD_DIVISOR
            return claimed if is_short else current
        if between_ns <= length:
            return claimed
        if not batch:
            return current
        self.between_ns = (
            between_ns - gap_ns
        )  # The making of a batch leaves the bound to the work on gradients.
        return batch

    def forward_ended(self, clock, follows: bool, may_be_batch: bool) -> None:
        """A forward pass has ended; `follows` is whether it follows another without a backward pass between them."""
        self.may_be_batch = may_be_batch
        if not follows:
            self.forward_ns = self.between_ns = 0
        if clock.stack is None:  # Else `length` is of another phase.
            self.forward_ns += clock.length

    def backward_ended(self, clock) -> None:
        self.may_be_batch, self.forward_ns, self.between_ns = True, 0, 0
        if clock.stack is None:
            self.backward_ns = clock.length

    def step_ended(self) -> None:
        """A batch may be made next."""
        self.may_be_batch = True

    def set_batch_word(self, word: int) -> None:
        """Charge the making of batches to this word; 0 for none. From whichever thread."""
        self.batch_word = word

    def page_opened(self) -> None:
        self.may_be_batch = False

    def forget(self) -> None:
        """The phases that are open are forgotten."""
        self.claimed, self.may_be_batch = _TOTALS, False
