"""What pages say of a run for its kept log: the steps that are new, and the account at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from goodput.account import Attempt, EndMark, Run, compute, document
from goodput.causes import explain
from goodput.rank_page.page import NS_MAX, PageError
from goodput.rank_page.reader import Reader
from goodput.sdk.reports.local_accounts import attempt_of, collectives_with_plugin
from goodput.stack_samples import sample_file


class Page:
    """An open page that is read again and again. Raises PageError."""

    def __init__(self, path: str):
        self._reader = Reader(path)
        self.identity = self._reader.identity
        self._step = self._event = 0

    def close(self) -> None:
        self._reader.close()

    def news(self, is_whole: bool = False) -> Attempt:
        """The attempt now, with the steps and events since the last call; with what is sampled of it if `is_whole`."""
        alive = self._reader.alive()
        snapshot = self._reader.snapshot(self._step, self._event, alive)
        attempt = attempt_of(snapshot, time.perf_counter_ns(), alive)
        self._step = max([self._step, *(one.number for one in snapshot.steps)])
        self._event = max([self._event, *(one.number for one in snapshot.events)])
        if is_whole or not alive or attempt.ended:
            attempt.stacks = sample_file.read(self._reader.path, attempt.start_ns)
            with contextlib.suppress(PageError):
                attempt.collectives = collectives_with_plugin(self._reader)
        return attempt


def mark_over(attempts: Iterable[Attempt]) -> None:
    """Nobody starts these processes again: what did not finish has failed."""
    newest: dict[int, Attempt] = {}
    for attempt in sorted(attempts, key=lambda one: one.attempt):
        newest[attempt.rank] = attempt
    for attempt in newest.values():
        if attempt.known_end_ns() is not None and attempt.ended != "finished":
            attempt.end_mark = EndMark("failed", 0, NS_MAX)


def summary_of(run: Run) -> dict[str, Any]:
    """What a list of runs shows of one, by the account of its pages."""
    ends = [one.known_end_ns() for one in run.attempts.values()]
    known = [one for one in ends if one is not None]
    now_ns = max(known) if len(known) == len(ends) and known else time.time_ns()
    account = compute(run, now_ns)
    found = document(account, explain(account))
    return {
        "status": found["status"],
        "start": found["start"],
        "end": found["end"],
        "ranks": len({rank for rank, _ in run.attempts}),
        "steps": found["steps"],
        "gpu_seconds": found["gpu_seconds"],
        "states": {name: value for name, value in found["states"].items() if value},
    }
