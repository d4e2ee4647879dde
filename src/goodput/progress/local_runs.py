"""The runs whose rank pages are on this machine, with their accounts: read again and again, from outside of the trainers.

Of a living rank's page the last STEPS_MAX steps are read each time (a rank costs some 5 ms of CPU time); the page of a
process that is gone is read once. Ranks on other machines are not expected, so waiting for them shows as communication.

    runs = LocalRuns(["/dev/shm/goodput"], stall_seconds=60.0)
    for run in runs.read(): print(run.document["run"], run.pace.steps_per_second)
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from goodput.account import FINAL_STATUSES, Account, Attempt, Run, compute, document
from goodput.account.hang import verdict, without_stack
from goodput.account.rank_status import rank_status
from goodput.account.text.answer import with_hang
from goodput.causes import explain
from goodput.rank_page.page import PageError, file_prefix
from goodput.sdk.reports.local_accounts import (
    PageRead,
    by_user,
    page_paths,
    read_page,
    runs_of,
    without_copies,
)
from goodput.wire.identity import clean_text

STEPS_MAX, SHOWN_STEPS, WINDOW_SECONDS = 256, 120, 60.0
NOTES_MAX = 3


class Pace(NamedTuple):
    """A run's present rate in steps per second, and recent step times in seconds, oldest first.

    `basis` describes what a step time stands for, such as "last 120 steps"; None among the times is a gap.
    """

    steps_per_second: float | None
    step_seconds: list[float | None]
    basis: str


class LocalRun(NamedTuple):
    """`document` is its account's, with `live` ranks and `hang` as the API's document of a run has them."""

    run: Run
    document: dict[str, Any]

    @property
    def pace(self) -> Pace:
        return _pace(self.run)

    def step_seconds(self, rank: int) -> list[float]:
        """Lengths of the last steps of a rank's newest attempt."""
        newest = next((one for one in _newest(self.run) if one.rank == rank), None)
        rows = newest.ordered_rows()[-SHOWN_STEPS:] if newest else []
        return [(row.end_ns - row.start_ns) / 1e9 for row in rows]


class LocalRuns:
    """The runs in some folders. After `read`, `pages` has the newest attempt of each (run, rank), with its path, and `notes`
    names pages that could not be read."""

    def __init__(self, directories: Sequence[str], stall_seconds: float):
        self._directories, self._stall_seconds = directories, stall_seconds
        self._gone: dict[tuple[str, int], PageRead] = {}  # by path and inode
        self._known: dict[str, tuple[tuple, LocalRun]] = {}  # by run, with the attempts that it was made of
        self.pages: dict[tuple[str, int], PageRead] = {}
        self.notes: list[str] = []

    def read(self, only: str | None = None) -> list[LocalRun]:
        """The runs, by name, or this one alone. Raises OSError for a folder that cannot be read; one that is not there is
        empty, since the first rank makes it."""
        pages = self._read_pages(only)
        return [self._local_run(run) for run in runs_of(pages) if only in (None, run.name)]

    def _read_pages(self, only: str | None) -> list[PageRead]:
        prefix = "" if only is None else file_prefix(only)
        paths = []
        for directory in self._directories:
            with contextlib.suppress(FileNotFoundError):
                paths += [p for p in page_paths(directory) if os.path.basename(p).startswith(prefix)]
        found, gone, notes = [], {}, []
        for path in paths:
            try:
                key = path, os.stat(path).st_ino
                one = self._gone.get(key) or read_page(path, time.perf_counter_ns(), STEPS_MAX)
            except (PageError, OSError) as error:
                notes.append(f"skipped {clean_text(error, 200)}")
                continue
            if not one.attempt.alive:
                gone[key] = one
            found.append(one)
        found, copies = without_copies(found)
        notes += [f"skipped {clean_text(text, 300)}" for text in copies]
        found, self.pages = by_user(found), {}
        for one in found:
            place = one.run, one.attempt.rank
            if place not in self.pages or self.pages[place].attempt.attempt < one.attempt.attempt:
                self.pages[place] = one
        if len(notes) > NOTES_MAX:
            notes[NOTES_MAX:] = [f"and {len(notes) - NOTES_MAX} more pages"]
        self._gone, self.notes = gone, notes
        return found

    def _local_run(self, run: Run) -> LocalRun:
        """The account of one that is over changes only where a page does."""
        mark = tuple(map(id, run.attempts.values()))
        known = self._known.get(run.name)
        if known and known[0] == mark and known[1].document["status"] in FINAL_STATUSES:
            return known[1]
        account = compute(run, time.time_ns(), stall_seconds=self._stall_seconds)
        whole = with_hang(document(account, explain(account)), _hang(run, account))
        found = LocalRun(run, {**whole, "live": [_live(one) for one in _newest(run)]})
        self._known[run.name] = mark, found
        return found


def _newest(run: Run) -> list[Attempt]:
    """The newest attempt of each rank."""
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
    # Other ranks may be on other machines, but those that this one waits for have no page here either.
    waits = account.peers is not None and account.peers.is_waiting
    unseen = len(account.peers.missing) if account.peers is not None and waits else 0
    found = verdict(ranks, now_ns, account.threshold_ns, unseen=unseen)
    return dict(without_stack(found)) if found else None


def _pace(run: Run) -> Pace:
    """The pace of the rank with the most steps: over the last minute, or since its last step where that is longer ago."""
    newest = max(_newest(run), key=lambda one: (one.alive, one.top_number))
    rows = newest.ordered_rows()
    now_ns = newest.seen_ns if newest.alive and not newest.ended else newest.end_ns
    recent = [row for row in rows if now_ns - row.end_ns < WINDOW_SECONDS * 1e9]
    rate = None
    if recent and now_ns > recent[0].start_ns:
        rate = len(recent) / (max(now_ns - recent[0].start_ns, 1) / 1e9)
    shown = [(row.end_ns - row.start_ns) / 1e9 for row in rows[-SHOWN_STEPS:]]
    return Pace(rate, list(shown), f"last {len(shown)} steps")
