"""Steps: `for batch in steps(loader)` and `with step()`, which bound what is kept or lost.

In: the user's loop. Out: gaps, begins and ends on the recorder. `steps` times the wait for the loader and makes
steps that touch: one begins where the one before ended. `step` bounds what is inside its `with`. Inside an open
step or phase both pass through, so an evaluation loop inside `phase("evaluation")` makes no training steps.
A step whose body raised was not completed, and its time counts as outside steps.
"""

from __future__ import annotations

from time import perf_counter_ns

from goodput.sdk.phase import Phase
from goodput.sdk.recorder import Recorder


class Step:
    """One step as a context manager."""

    __slots__ = ("_index", "_open", "_recorder", "_samples")

    def __init__(self, recorder: Recorder, index: int | None, samples: int):
        self._recorder, self._index, self._samples, self._open = recorder, index, samples, False

    def __enter__(self) -> Step:
        recorder = self._recorder
        if _may_begin(recorder):
            now = perf_counter_ns()
            recorder.end_gap(now)
            recorder.begin_step(now, self._index, self._samples)
            self._open = True
        return self

    def __exit__(self, kind, *_) -> None:
        if not self._open:
            return
        self._open = False
        if kind is None:
            self._recorder.end_step(perf_counter_ns())
        else:
            self._recorder.abandon_step()


def steps(recorder: Recorder, loader: Phase, iterable, samples: int):
    """Generator behind `goodput.steps`: yields the iterable's items, one step for each."""
    items = iter(iterable)
    if not _may_begin(recorder):
        yield from items
        return
    began = perf_counter_ns()
    while True:
        recorder.end_gap(began)
        with loader:
            try:
                item = next(items)
            except StopIteration:
                return
        recorder.begin_step(began, None, samples)
        mark, entries, recorder.raised = recorder.steps, recorder.entries, False
        try:
            yield item
        except GeneratorExit:
            if recorder.steps == mark and recorder.step_start_ns == began:
                _leave(recorder, worked=recorder.entries > entries)
            raise
        began = perf_counter_ns()
        if recorder.steps == mark and recorder.step_start_ns:
            recorder.end_step(began)
        else:
            recorder.drop("step")


def _leave(recorder: Recorder, worked: bool) -> None:
    """The loop was left by `break` or an exception, which a generator cannot tell apart.

    Its last step counts if a phase other than the loader's was completed in it and none of them raised.
    """
    if worked and not recorder.raised:
        recorder.end_step(perf_counter_ns())
    else:
        recorder.abandon_step()


def _may_begin(recorder: Recorder) -> bool:
    if not recorder.ready() and not recorder.adopt():
        return False
    return not recorder.step_start_ns and not recorder.depth
