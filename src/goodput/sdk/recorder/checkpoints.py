"""`goodput.checkpoint(step)`: when a checkpoint was begun and when it was safe on disk.

Three uses:

    with checkpoint(step): save(...)            # timed; committed when the body ends without an exception
    checkpoint(step)                            # already saved: committed now
    saving = checkpoint(step, wait=False); ...  # asynchronous: begun now, committed by saving.commit(),
    saving.commit()                             # from any thread
"""

from __future__ import annotations

from time import perf_counter_ns

from goodput.sdk.recorder.messages import short_repr
from goodput.sdk.recorder.phase import Phase
from goodput.sdk.recorder.recorder import STEP_MAX, Recorder, checked_int
from goodput.user_exceptions import reraise_from_handler


class Checkpoint:
    """One checkpoint of the work up to and including `step`."""

    __slots__ = ("_committed", "_phase", "_recorder", "_waits", "step")

    def __init__(self, recorder: Recorder, phase: Phase, step: int, wait: bool):
        self._recorder, self._phase, self.step = recorder, phase, step
        self._committed, self._waits = False, wait
        if recorder.is_recording:
            recorder.event("checkpoint_begun", perf_counter_ns(), step)

    def __enter__(self) -> Checkpoint:
        self._waits = False
        self._phase.__enter__()
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self._phase.__exit__(kind, value, traceback)
        if kind is None:
            self.commit()

    def commit(self, fingerprint: str = "") -> None:
        """The checkpoint is complete and can be restored from. Further calls change nothing."""
        self._waits = False
        if not self._committed and self._recorder.is_recording:
            self._committed = True
            self._recorder.event("checkpoint_committed", perf_counter_ns(), self.step, fingerprint)

    def __del__(self):
        # A bare `checkpoint(step)` statement drops the object at once: it means "saved".
        if self._waits:
            self.commit()


def begin(session, phase: Phase, step, wait) -> Checkpoint:
    """What `goodput.checkpoint` returns, whatever its arguments are."""
    recorder = session.recorder
    recorder.ready()
    index = checked_step(recorder, step)
    if index is None:
        session.warn(f"checkpoint({short_repr(step)}): want a step index; taken as the current one")
        index = current_step(recorder)
    try:
        wait = bool(wait)
    except Exception as error:
        reraise_from_handler(error)
        wait = True
    return Checkpoint(recorder, phase, index, wait)


def current_step(recorder: Recorder) -> int:
    """The running step, else the last one; -1 where there is none."""
    return recorder.step_next - (not recorder.step_start_ns) if recorder.is_recording else -1


def checked_step(recorder: Recorder, step) -> int | None:
    """`step` if it is a step index, else None and counted. None stands for the current step."""
    if step is None:
        return current_step(recorder)
    index = checked_int(step, -1, STEP_MAX)
    if index is None and recorder.is_recording:
        recorder.drop("checkpoint")
    return index
