"""The clock of the step thread and enter and exit of a phase, in Python: `_fast.c` where that was not compiled.

About 0.7 us from enter to exit here, 0.1 us compiled (bench/phase.py). `GOODPUT_PURE=1` selects this module. The rare
cases (other threads, not started) are in phase.Phase.

CPython runs signal handlers and switches threads only at calls and backward jumps. So a boundary makes its calls
first and then its stores, without a call in between: a handler that enters phases finds it either undone or done. The
handler may have moved the clock past the `now` of the boundary it interrupted, which then uses the later time.
"""

from __future__ import annotations

import struct
from _thread import get_ident
from time import perf_counter_ns

from goodput.sdk.recorder.user_signals import reraise_from_handler

TYPE_CHECKING = False  # `typing` is not imported: it takes longer than all of goodput.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_OVERFLOW_BIN = 31744
_STEP_BIAS = 1 << 63
_BLOCK_BITS = 10
_pack_half = struct.Struct("<e").pack_into
_half = bytearray(2)
_half_bits = memoryview(_half).cast("H")


def bin_of_ns(nanoseconds: int) -> int:
    """The fp16 bin of a duration, as histogram.bin_of_ns."""
    try:
        _pack_half(_half, 0, nanoseconds / 1e9)
    except OverflowError:
        return _OVERFLOW_BIN
    return _half_bits[0]


class Clock:
    """Charges time to the current phase. Only the thread whose ident is `thread` advances it.

    words     the page as u64, or None
    current   word of the phase that time is charged to
    last_ns   monotonic ns up to which time is charged
    child_ns  ns of inner phases in the current one
    entries   phases completed
    raised    whether a phase's body raised
    gap       word that the time before the next outermost phase is charged to, if it is not longer than `length`
    length    ns of the last outermost phase
    columns   phases in use, which are copied into a step's record
    layout    of a step: word of the ring, its records, words and phases of a record, and the words of the totals
              outside steps, steps, samples, the step's start, the next index, cost, and the histogram of lengths
    device    called with the charged word at each boundary, or None; not called again after it raised
    """

    _words: Any
    count: Callable[[int], None]  # this and the next one are of Recorder
    count_first: Callable[[int], None]

    def __init__(self, word_last: int, word_phase: int, word_totals: int, layout: tuple[int, ...]):
        self.layout = layout
        self.steps = self.samples = self.step_start_ns = self.step_end_ns = 0
        self.step_next = self.step_samples = self.phase_cost_ns = self.step_cost_ns = 0
        self.word_last, self.word_phase, self.word_totals = word_last, word_phase, word_totals
        self._words, self._backed = None, set()
        self.thread = self.last_ns = self.child_ns = self.entries = 0
        self.length = 0
        self.device: Any = None
        # State of automatic instrumentation between hooks: automatic/step_detection.py.
        self.columns = layout[3]
        self.began = self.after = self.batch_samples = 0
        self.optimizer_depth = self.micro_batches = self.optimizer_steps = self.reducers = 0
        self.inside = self.evaluating = self.trained = self.fetched = self.counting = self.routine = (
            self.preparing
        ) = self.unhooked_steps = self.sampling = self.fetching = False
        self.iterator: Any = None
        self.anchor: Any = None
        self.optimizer: Any = None
        self.skips_left = self.skipped_ns = self.word_batches = self.word_inside = self.word_wait = 0
        # Cost of measuring: automatic/overhead_budget.py.
        self.own_ns = self.reading_ns = self.extra_cost_ns = 0
        self.measuring = self.phases_off = False
        self.current, self.gap, self.raised = word_totals, word_totals, False
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
        return self.word_totals if self.phases_off else self.current

    @property
    def depth(self) -> int:
        """Number of open phases."""
        depth, frame = 0, self.stack
        while frame is not None:
            depth, frame = depth + 1, frame[0]
        return depth

    def reset(self) -> None:
        """Forget open phases."""
        self.stack = None
        self.current, self.gap, self.child_ns = self.word_totals, self.word_totals, 0

    def close_step(self, now_ns: int) -> int:
        """Close the running step: its record in the ring, sealed last, and one count of its length.

        Returns the moment of its end, which is later where a signal handler has moved the clock past `now_ns`.
        """
        ring, records, width, slots, outside, *places, histograms = self.layout
        word_steps, word_samples, word_start, word_next, word_cost = places
        words, number, start, totals = self._words, self.steps + 1, self.step_start_ns, self.word_totals
        at = ring + (number - 1) % records * width
        many = self.columns
        all_totals, all_outside = slice(totals, totals + many), slice(outside, outside + many)
        into_totals, into_outside = slice(at + 5, at + 5 + many), slice(at + 5 + slots, at + 5 + slots + many)
        last_ns = self.last_ns
        if now_ns < last_ns:
            now_ns = last_ns
        words[self.word_totals if self.phases_off else self.current] += now_ns - last_ns
        self.last_ns = self.step_end_ns = words[self.word_last] = now_ns
        self.samples += self.step_samples
        words[at + width - 1] = 0
        words[at + 1] = self.step_next + _STEP_BIAS
        words[at + 2], words[at + 3], words[at + 4] = start, now_ns, self.samples
        words[into_totals] = words[all_totals]
        words[into_outside] = words[all_outside]
        words[at] = number
        words[at + width - 1] = number
        words[word_steps] = self.steps = number
        words[word_samples] = self.samples
        self.step_start_ns = words[word_start] = 0
        self.step_next += 1
        words[word_next] = self.step_next + _STEP_BIAS
        words[word_cost] = self.entries * self.phase_cost_ns + number * self.step_cost_ns + self.extra_cost_ns
        self.count(histograms + bin_of_ns(now_ns - start))
        return now_ns

    def next_step(self, samples: int) -> int:
        """Close the running step, which handled `samples`, and begin the next one at its end."""
        self.step_samples = samples
        now_ns = self.close_step(perf_counter_ns())
        self.step_samples, self.step_start_ns = 0, now_ns
        self.words[self.layout[7]] = now_ns
        if self.measuring:
            self.own_ns += perf_counter_ns() - now_ns - self.reading_ns
            self.measuring = False
        return now_ns

    def notify_device(self, word: int) -> None:
        """Report a boundary to the device clock."""
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
            words[self.word_totals if self.phases_off else current] += now - last
            self.last_ns = words[self.word_last] = now
        while frame is not None and frame is not stack:
            frame, current, began_ns, child_ns = frame
            child_ns += now - began_ns if began_ns else 0
        self.stack, self.current, self.child_ns = frame, current, child_ns
        words[self.word_phase] = 0 if self.phases_off else current - self.word_totals

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

    def is_backed(self, word: int) -> bool:
        """Whether the memory of a word is allocated."""
        return word >> _BLOCK_BITS in self._backed

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
        words, current, last = clock._words, clock.current, clock.last_ns
        if now < last:
            now = last
        charged = current
        if clock.gap != clock.word_totals:
            if clock.stack is None and now - last <= clock.length:
                charged = clock.gap
            clock.gap = clock.word_totals
        words[charged] += now - last
        clock.stack = (clock.stack, current, now, clock.child_ns)
        clock.child_ns = 0
        clock.current = self.total
        clock.last_ns = words[clock.word_last] = now
        words[clock.word_phase] = self.index
        if clock.device is None and not clock.measuring:
            return self
        try:
            if clock.device is not None:
                clock.notify_device(charged)
            if clock.measuring:
                clock.own_ns += perf_counter_ns() - now - clock.reading_ns
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
        clock.last_ns = words[clock.word_last] = now
        if clock.stack is None:
            clock.length = length
        words[clock.word_phase] = current - clock.word_totals
        if clock.device is not None:
            clock.notify_device(total)
        if not began_ns:  # Entered while phases were off: the length is unknown.
            return None
        try:
            _pack_half(_half, 0, own / 1e9)
            word = self.histogram + _half_bits[0]
        except OverflowError:
            word = self.histogram + _OVERFLOW_BIN
        if word >> _BLOCK_BITS in clock._backed:
            words[word] += 1
            if clock.measuring:
                clock.own_ns += perf_counter_ns() - now - clock.reading_ns
            return None
        return clock.count_first(word)
