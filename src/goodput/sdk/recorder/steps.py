"""Steps of a training loop: `for batch in steps(loader)` and `with step()`.

`steps` times the wait for each batch; each step begins where the one before ended. `step` covers the body of its
`with`. Inside an open step or phase neither records a step, so an evaluation loop inside `phase("evaluation")` makes no
training steps. A step whose body raised is not counted, and its time lies outside steps.
"""

from __future__ import annotations

from time import perf_counter_ns

from goodput.sdk.recorder.phase import Phase
from goodput.sdk.recorder.recorder import Recorder, State
from goodput.user_exceptions import drop_own_frames

_EXHAUSTED = object()


class Step:
    """One step as a context manager."""

    __slots__ = ("_began", "_index", "_recorder", "_samples")

    def __init__(self, recorder: Recorder, index: int | None, samples: int):
        self._recorder, self._index, self._samples, self._began = recorder, index, samples, None

    def __enter__(self) -> Step:
        recorder = self._recorder
        if _may_begin(recorder):
            began = recorder.end_gap(perf_counter_ns())
            if recorder.begin_step(began, self._index, self._samples):
                self._began = began
        return self

    def __exit__(self, kind, *_) -> None:
        recorder, began = self._recorder, self._began
        if began is None:
            return
        self._began = None
        if not recorder.is_running(began):
            _drop_step(recorder)
        elif kind is None:
            recorder.end_step(perf_counter_ns())
        else:
            recorder.abandon_step()


def steps(recorder: Recorder, loader: Phase, iterable, samples: int):
    """Generator behind `goodput.steps`: yields the iterable's items, one step for each."""
    # Before iter(), where a loader forks its workers: they must find this process started.
    began = perf_counter_ns()
    try:
        if not _may_begin(recorder):
            yield from iterable
            return
        with loader:
            items = iter(iterable)
        began = perf_counter_ns()
        while True:
            began = recorder.end_gap(began)
            with loader:
                item = next(items, _EXHAUSTED)
            if item is _EXHAUSTED:
                return
            recorder.begin_step(began, None, samples)
            entries = recorder.entries
            recorder.forget_raised()
            try:
                yield item
            except GeneratorExit:
                if recorder.is_running(began):
                    _leave(recorder, worked=recorder.entries > entries)
                raise
            now = perf_counter_ns()
            if recorder.is_running(began):
                began = recorder.end_step(now)
            else:
                _drop_step(recorder)
                began = now
    except BaseException as error:
        drop_own_frames(error)
        raise
    finally:
        if recorder.is_running(began):
            recorder.abandon_step()


def timed(session, loader: Phase, iterable):
    """Generator behind `goodput.loader`: the iterable's items. Only goodput.auto makes steps of them."""
    try:
        with loader:
            items = iter(iterable)
        while True:
            auto = session.automatic
            if auto is not None and auto.training.evaluating:
                item = next(items, _EXHAUSTED)
            else:
                if auto is not None:
                    auto.open_step()
                with loader:
                    item = next(items, _EXHAUSTED)
            if item is _EXHAUSTED:
                return
            yield item
    except BaseException as error:
        drop_own_frames(error)
        raise


def _leave(recorder: Recorder, worked: bool) -> None:
    """End the last step of a loop that was left by `break` or an exception, between which a generator cannot distinguish.

    The step counts if a phase other than the loader's was completed in it and none of them raised.
    """
    if worked and not recorder.raised:
        recorder.end_step(perf_counter_ns())
    else:
        recorder.abandon_step()


def _drop_step(recorder: Recorder) -> None:
    """Count a step as dropped: its page was closed or its index was reset while it ran."""
    if recorder.is_recording:
        recorder.drop("step")


def _may_begin(recorder: Recorder) -> bool:
    if recorder.state == State.FORKED_EARLY:
        recorder.set_state(State.NOT_STARTED)
    if not recorder.ready() and not recorder.adopt():
        return False
    return not recorder.step_start_ns and not recorder.depth
