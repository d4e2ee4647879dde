"""`goodput.phase(name)`: one object per phase, used as context manager or decorator, re-entrant and shared.

Nested phases are exclusive: an inner phase's time is not the
outer's. In a thread other than the one that runs the step loop a phase is counted as background and does not
touch the account. The common case is hot_path.Phase; the rare ones are here.

    with phase("h2d"):                     @phase("forward")
        batch = batch.to(device)           def forward(batch): ...
"""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.rank_page import page
from goodput.sdk.recorder.hot_path import Phase as _Phase
from goodput.sdk.recorder.recorder import Recorder
from goodput.user_exceptions import drop_own_frames


class Phase(_Phase):
    """A named phase of one recorder. Enter and exit never raise and never swallow the body's exception."""

    recorder: Recorder

    def __init__(self, recorder: Recorder, name: str, index: int):
        # The first histogram is that of steps; "none" as a phase counts in that of background phases, which is free.
        histogram = page.W_HISTOGRAMS + (index or page.PHASE_SLOTS) * page.HISTOGRAM_WORDS
        super().__init__(recorder, name, index, page.W_TOTALS + index, histogram)
        recorder.add_column(index)
        self._elsewhere: dict[int, list[int]] = {}

    def __call__(self, function):
        """Decorate a function: each call is one occurrence of the phase."""

        @functools.wraps(function)
        def timed(*args, **kwargs):
            try:
                with self:
                    return function(*args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise

        return timed

    def _enter_elsewhere(self, now: int) -> _Phase:
        recorder = self.recorder
        if recorder.ready():
            return self.__enter__()
        if recorder.is_recording:
            self._elsewhere.setdefault(get_ident(), []).append(now)
        return self

    def _exit_elsewhere(self, now: int) -> None:
        recorder = self.recorder
        if not recorder.is_recording:
            return None
        began = self._elsewhere.get(get_ident())
        if not began:
            left = recorder.left_open.pop(get_ident(), 0)
            if left > 1:
                recorder.left_open[get_ident()] = left - 1
            return None if left else recorder.drop("phase")
        recorder.add_background(("phase", self.index, now - began.pop()))
        if not began:
            del self._elsewhere[get_ident()]

    def _exit_out_of_order(self) -> None:
        """An exit without its enter, or before an inner phase's: it gets no histogram entry and is counted."""
        recorder = self.recorder
        recorder.drop("phase")
        recorder.close_below(self.total)
