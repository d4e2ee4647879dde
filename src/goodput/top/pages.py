"""Documents of the runs on this machine, from their rank pages: no agent and no server is needed.

A living rank's page is read whole each time (its 1024 last steps, some 10 ms a rank); that of a process that is gone
once. Ranks on other machines are not expected, so waiting for them shows as communication.
"""

from __future__ import annotations

import os
import time
from typing import Any

from goodput.account import FINAL_STATUSES, Account, Attempt, Run, compute, document
from goodput.account.hang import verdict, without_stack
from goodput.account.rank_status import rank_status
from goodput.causes import explain
from goodput.rank_page.page import PageError
from goodput.sdk.reports.local_accounts import PageRead, page_paths, read_page, runs_of
from goodput.top.gpus import AgentGpus
from goodput.top.model import (
    SHOWN_STEPS,
    WINDOW_SECONDS,
    Frame,
    History,
    Pace,
    SourceError,
    run_row,
    run_view,
)
from goodput.wire.identity import clean_text

NOTES_MAX = 3


class PageSource:
    """The runs whose pages are in `directory`; `agent` adds the GPUs' figures where this machine has one."""

    def __init__(self, directory: str, stall_seconds: float, agent: AgentGpus | None = None):
        self.title = f"{os.uname().nodename} {directory}"
        self._directory, self._stall_seconds, self._agent = directory, stall_seconds, agent
        self._gone: dict[tuple[str, int], PageRead] = {}  # by path and inode
        self._documents: dict[str, tuple[tuple, dict[str, Any]]] = {}  # of runs without a living rank
        self._history = History()
        self.pages: dict[
            tuple[str, int], tuple[str, PageRead]
        ] = {}  # by run and rank: that of the newest attempt

    def read(self, opened: str | None) -> Frame:
        """The runs, living ones first, and one in detail: `opened`, or the only one. Raises SourceError."""
        notes: list[str] = []
        runs = runs_of(self._pages(notes))
        found = {run.name: self._document(run) for run in runs}
        rows = sorted(map(run_row, found.values()), key=lambda row: (row.status in FINAL_STATUSES, row.run))
        living = [row.run for row in rows if row.status not in FINAL_STATUSES]
        name = opened or (rows[0].run if len(rows) == 1 or len(living) == 1 else None)
        chosen = next((run for run in runs if run.name == name), None)
        view = None
        if chosen is not None:
            view = run_view(found[chosen.name], _pace(chosen), self._history, time.monotonic())
            self._add_processes(chosen, view.ranks)
        return Frame(self.title, time.time(), rows, view, notes)

    def _pages(self, notes: list[str]) -> list[PageRead]:
        try:
            paths = page_paths(self._directory)
        except FileNotFoundError:
            paths = []  # The first rank makes it.
        except OSError as error:
            raise SourceError(f"{self._directory}: {error.strerror}") from None
        found, gone, self.pages = [], {}, {}
        for path in paths:
            try:
                key = path, os.stat(path).st_ino
                one = self._gone.get(key) or read_page(path, time.perf_counter_ns())
            except (PageError, OSError) as error:
                notes.append(f"skipped {clean_text(error, 200)}")
                continue
            if not one.attempt.alive:
                gone[key] = one
            found.append(one)
            place = one.run, one.attempt.rank
            if place not in self.pages or self.pages[place][1].attempt.attempt < one.attempt.attempt:
                self.pages[place] = path, one
        self._gone = gone
        if len(notes) > NOTES_MAX:
            notes[NOTES_MAX:] = [f"and {len(notes) - NOTES_MAX} more pages"]
        return found

    def _document(self, run: Run) -> dict[str, Any]:
        """The run's document; of one without a living rank it changes only where a page does."""
        attempts = list(run.attempts.values())
        mark = tuple(map(id, attempts))
        known = self._documents.get(run.name)
        if known and known[0] == mark and known[1]["status"] in FINAL_STATUSES:
            return known[1]
        account = compute(run, time.time_ns(), stall_seconds=self._stall_seconds)
        found = {
            **document(account, explain(account)),
            "live": [_live(one) for one in _newest(run)],
            "hang": _hang(run, account),
        }
        self._documents[run.name] = mark, found
        return found

    def _add_processes(self, run: Run, rows: list) -> None:
        gpus = self._agent.of(run.name) if self._agent else {}
        for row in rows:
            place = self.pages.get((run.name, row.rank))
            if place and place[1].attempt.alive:
                row.pid = place[1].pid
            row.gpu, row.watts = gpus.get(row.rank, (None, None))
            row.recent = [ns / 1e9 for ns in _lengths(run, row.rank)]


def _newest(run: Run) -> list[Attempt]:
    """Of each rank the newest attempt."""
    found: dict[int, Attempt] = {}
    for (rank, number), attempt in run.attempts.items():
        if rank not in found or found[rank].attempt < number:
            found[rank] = attempt
    return [found[rank] for rank in sorted(found)]


def _last(attempt: Attempt):
    return attempt.rows[attempt.top_number] if attempt.rows else None


def _live(attempt: Attempt) -> dict[str, Any]:
    """As the API's LiveRank."""
    last, alive = _last(attempt), attempt.known_end_ns() is None
    return {
        "rank": attempt.rank,
        "host": attempt.host,
        "attempt": attempt.attempt,
        "alive": alive,
        "ended": attempt.end_reason() or ("" if alive else "killed"),
        "phase": attempt.phase,
        "phase_seconds": max(attempt.seen_ns - attempt.last_ns, 0) / 1e9,
        "step": last.step if last else None,
        "step_seconds": (last.end_ns - last.start_ns) / 1e9 if last else None,
        "report_age_seconds": 0.0,
    }


def _hang(run: Run, account: Account) -> dict[str, Any] | None:
    if account.status != "running":
        return None
    now_ns = time.time_ns()
    ranks = [rank_status(one, _last(one), account.planned, now_ns) for one in _newest(run)]
    found = verdict(ranks, now_ns, account.threshold_ns)
    return dict(without_stack(found)) if found else None


def _lengths(run: Run, rank: int) -> list[int]:
    """Lengths of the last steps of a rank's newest attempt, in ns."""
    newest = next((one for one in _newest(run) if one.rank == rank), None)
    rows = newest.ordered_rows()[-SHOWN_STEPS:] if newest else []
    return [row.end_ns - row.start_ns for row in rows]


def _pace(run: Run) -> Pace:
    """That of the rank with the most steps: over the last minute, or since its last step where that is longer ago."""
    newest = max(_newest(run), key=lambda one: (one.alive, one.top_number))
    rows = newest.ordered_rows()
    now_ns = newest.seen_ns if newest.alive and not newest.ended else newest.end_ns
    recent = [row for row in rows if now_ns - row.end_ns < WINDOW_SECONDS * 1e9]
    rate = None
    if recent and now_ns > recent[0].start_ns:
        rate = len(recent) / (max(now_ns - recent[0].start_ns, 1) / 1e9)
    shown = [(row.end_ns - row.start_ns) / 1e9 for row in rows[-SHOWN_STEPS:]]
    return Pace(rate, list(shown), f"last {len(shown)} steps")
