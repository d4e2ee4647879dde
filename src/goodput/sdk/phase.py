"""`goodput.phase(name)`: one object per phase, used as context manager or decorator, re-entrant and shared.

In: the user's `with`. Out: the recorder's words. Nested phases are exclusive: an inner phase's time is not the
outer's. In a thread other than the one that runs the step loop a phase is counted as background and does not
touch the account. Cost: about 0.7 us from enter to exit (bench/phase.py).

    with phase("h2d"):                     @phase("forward")
        batch = batch.to(device)           def forward(batch): ...
"""

from __future__ import annotations

import functools
from _thread import get_ident
from time import perf_counter_ns

from goodput import page
from goodput.sdk.recorder import Recorder, _half

_W_LAST, _W_PHASE, _W_TOTALS = page.W_LAST, page.W_PHASE, page.W_TOTALS


class Phase:
    """A named phase of one recorder. Enter and exit never raise and never swallow the body's exception."""

    __slots__ = ("_elsewhere", "_histogram", "_total", "index", "name", "recorder")

    def __init__(self, recorder: Recorder, name: str, index: int):
        self.recorder, self.name, self.index = recorder, name, index
        self._total = page.W_TOTALS + index
        self._histogram = page.W_HISTOGRAMS + index * page.HISTOGRAM_WORDS
        self._elsewhere: dict[int, list[int]] = {}

    def __enter__(self) -> Phase:
        now = perf_counter_ns()
        recorder = self.recorder
        if get_ident() != recorder.thread:
            return self._enter_elsewhere(now)
        words = recorder.words
        current = recorder.current
        words[current] += now - recorder.last_ns
        recorder.stack.append((current, now, recorder.child_ns))
        recorder.child_ns = 0
        recorder.current = self._total
        recorder.last_ns = now
        words[_W_LAST] = now
        words[_W_PHASE] = self.index
        return self

    def __exit__(self, kind, value, traceback) -> None:
        now = perf_counter_ns()
        recorder = self.recorder
        if get_ident() != recorder.thread:
            return self._exit_elsewhere(now)
        total = self._total
        if recorder.current != total:
            return self._exit_out_of_order()
        words = recorder.words
        words[total] += now - recorder.last_ns
        current, began, child_ns = recorder.stack.pop()
        length = now - began
        own = length - recorder.child_ns
        recorder.child_ns = child_ns + length
        recorder.current = current
        recorder.last_ns = now
        recorder.entries += 1
        words[_W_LAST] = now
        words[_W_PHASE] = current - _W_TOTALS
        if kind is not None:
            recorder.raised = True
        try:
            _half.pack_into(recorder.half, 0, own / 1e9)
            words[self._histogram + recorder.half_bits[0]] += 1
        except OverflowError:
            words[self._histogram + 31744] += 1

    def __call__(self, function):
        """Decorate a function: each call is one occurrence of the phase."""

        @functools.wraps(function)
        def timed(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        return timed

    def _enter_elsewhere(self, now: int) -> Phase:
        recorder = self.recorder
        if recorder.ready():
            return self.__enter__()
        if recorder.thread > 0:
            self._elsewhere.setdefault(get_ident(), []).append(now)
        return self

    def _exit_elsewhere(self, now: int) -> None:
        recorder = self.recorder
        if recorder.thread < 0:
            return None
        began = self._elsewhere.get(get_ident())
        if not began:
            return recorder.drop("phase")
        recorder.add_background(("phase", self.index, now - began.pop()))
        if not began:
            del self._elsewhere[get_ident()]

    def _exit_out_of_order(self) -> None:
        """An exit without its enter, or before an inner phase's: it gets no histogram entry and is counted."""
        recorder = self.recorder
        recorder.drop("phase")
        stack = recorder.stack
        for depth in range(len(stack) - 1, 0, -1):
            if stack[depth][0] == self._total:
                # The phase is open below another: that one shall return to where this one would have.
                stack[depth] = (stack[depth - 1][0], *stack[depth][1:])
                del stack[depth - 1]
                return
