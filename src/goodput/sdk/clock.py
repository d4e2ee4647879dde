"""The clock of the step thread and a phase's enter and exit, in Python: what `_fast.c` is where it compiled.

In: a phase entered or left. Out: its time, exclusive of inner phases, in the words of a rank page. Nothing is
allocated that survives. From enter to exit about 0.7 us here and 0.1 us compiled (bench/phase.py).
`GOODPUT_PURE=1` chooses this module. It does not know steps, other threads or how a recorder starts: the rare
cases are methods of phase.Phase.
"""

from __future__ import annotations

import struct
from _thread import get_ident
from time import perf_counter_ns

_OVERFLOW_BIN = 31744
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
    """Charges time to the current phase. Only the thread whose ident is `thread` moves it.

    words     the page as u64, or None
    current   word of the phase that time is charged to
    last_ns   monotonic ns up to which time is charged
    child_ns  ns of inner phases in the current one
    entries   phases completed
    raised    whether a phase's body raised
    """

    def __init__(self, word_last: int, word_phase: int, word_totals: int):
        self.word_last, self.word_phase, self.word_totals = word_last, word_phase, word_totals
        self.words = None
        self.thread = self.last_ns = self.child_ns = self.entries = 0
        self.current, self.raised = word_totals, False
        self.stack: list[tuple[int, int, int]] = []

    @property
    def depth(self) -> int:
        """Phases that are open."""
        return len(self.stack)

    def reset(self) -> None:
        """Forget the phases that are open."""
        self.stack.clear()
        self.current, self.child_ns = self.word_totals, 0

    def close_below(self, total: int) -> None:
        """A phase open below another was left: that other shall return to where this one would have."""
        stack = self.stack
        for depth in range(len(stack) - 1, 0, -1):
            if stack[depth][0] == total:
                stack[depth] = (stack[depth - 1][0], *stack[depth][1:])
                del stack[depth - 1]
                return


class Phase:
    """A phase of one clock; `total` and `histogram` are its words."""

    def __init__(self, recorder: Clock, name: str, index: int, total: int, histogram: int):
        self.recorder, self.name, self.index = recorder, name, index
        self.total, self.histogram = total, histogram

    def __enter__(self) -> Phase:
        now = perf_counter_ns()
        clock = self.recorder
        if get_ident() != clock.thread:
            return self._enter_elsewhere(now)
        words, current = clock.words, clock.current
        words[current] += now - clock.last_ns
        clock.stack.append((current, now, clock.child_ns))
        clock.child_ns = 0
        clock.current = self.total
        clock.last_ns = words[clock.word_last] = now
        words[clock.word_phase] = self.index
        return self

    def __exit__(self, kind, value, traceback) -> None:
        now = perf_counter_ns()
        clock = self.recorder
        if get_ident() != clock.thread:
            return self._exit_elsewhere(now)
        total = self.total
        if clock.current != total or not clock.stack:
            return self._exit_out_of_order()
        words = clock.words
        words[total] += now - clock.last_ns
        current, began_ns, child_ns = clock.stack.pop()
        length = now - began_ns
        own = length - clock.child_ns
        clock.child_ns = child_ns + length
        clock.current = current
        clock.entries += 1
        clock.last_ns = words[clock.word_last] = now
        words[clock.word_phase] = current - clock.word_totals
        if kind is not None:
            clock.raised = True
        try:
            _pack_half(_half, 0, own / 1e9)
            words[self.histogram + _half_bits[0]] += 1
        except OverflowError:
            words[self.histogram + _OVERFLOW_BIN] += 1
        return None
