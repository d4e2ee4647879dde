"""Answers from a run log."""

from __future__ import annotations

from collections.abc import Callable

from goodput.defaults import STALL_SECONDS
from goodput.runlog import LogError
from goodput.runlog.replay import replay
from goodput.runlog.scan_results import Problems
from goodput.whatif.answers import Answers, answer
from goodput.whatif.recorders import Recorders
from goodput.whatif.steps import ROWS_MAX


def read(
    path: str,
    run: str | None = None,
    *,
    stall_seconds: float = STALL_SECONDS,
    rows_max: int = ROWS_MAX,
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[Answers, Problems]:
    """The answers for the only run of a log, or the one of this name; at most `rows_max` rows, the newest, are replayed. Raises LogError."""
    recorders = Recorders(run, rows_max)
    replayed = replay(path, stall_seconds=stall_seconds, progress=progress, take_steps=recorders)
    names = [one.account.run for one in replayed]
    if run is None and len(names) > 1:
        raise LogError(f"{path}: {len(names)} runs ({', '.join(sorted(names)[:5])}); name one as {path}#RUN")
    found = next((one for one in replayed if run in (None, one.account.run)), None)
    if found is None:
        raise LogError(f"{path}: no run {run!r}; there are {', '.join(map(repr, names[:5]))}")
    return answer(found.account, recorders.of(found.account.run)), found.problems
