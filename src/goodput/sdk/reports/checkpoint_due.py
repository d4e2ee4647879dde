"""`goodput.checkpoint_due()`: whether saving a checkpoint now is best; checkpoint_adviser.py has the arithmetic.

It knows the saves of this process from its own page, and failures from the pages of this rank's earlier attempts that
are still in the directory, HISTORY_MAX at most. A call looks at the clock; the page is read READS times in an interval,
which takes some 100 us, and the pages of earlier attempts at the first call, 100 us each. A plan of saves takes some 30 ms:
at the first call, after the first save, and once in half a plan, many intervals. Nothing raises, blocks or starts a thread:
where nothing is measured, no checkpoint is due.
"""

from __future__ import annotations

import os
from time import perf_counter_ns

from goodput.rank_page import page
from goodput.rank_page.page import PageError
from goodput.sdk.reports.checkpoint_adviser import Adviser

HISTORY_MAX = 64
READ_SECONDS_MIN = 0.5
READS = 20  # in an interval
GIVEN_MAX = 1000
ALL = page.NS_MAX - 1  # as the number of a step: none of the ring's are wanted
NO_FAILURE = ("finished", "resumed")


class CheckpointDue:
    """One per process. `adviser` is None before the first call that finds a page."""

    def __init__(self, session):
        self._session = session
        self.adviser: Adviser | None = None
        self._process: tuple[str, int] | None = None  # path and attempt that the figures below are of
        self._is_due = False
        self._next_ns = 0
        self._saved_age = 0.0  # in seconds, at the last save
        self._due_age: float | None = None
        self._event = 0
        self._saving_ns = 0  # in the checkpoint phase up to the last save
        self._begin_ns = 0

    def is_due(self, failures=()) -> bool:
        """Never raises. `failures` counts at the first call only."""
        try:
            now_ns = perf_counter_ns()
            if now_ns < self._next_ns:
                return self._is_due
            if self._session.writer is None:
                return False
            return self._evaluate(now_ns, failures)
        except Exception:
            self._next_ns = perf_counter_ns() + 10**10
            return False

    def _evaluate(self, now_ns: int, failures) -> bool:
        writer = self._session.writer
        from goodput.rank_page.reader import Reader

        snapshot = Reader(writer.path or "this process's page", writer.fd).snapshot(ALL, self._event)
        process = (writer.path, snapshot.identity["attempt"])
        if self.adviser is None or process != self._process:
            self.adviser, self._process = self._informed(snapshot.identity, writer.path, failures), process
            self._begin_ns = snapshot.identity["start_mono_ns"]
            self._saved_age, self._due_age, self._event, self._saving_ns = 0.0, None, 0, 0
        self._follow(snapshot)
        if self._due_age is None:
            self._due_age = self._saved_age + self.adviser.interval(self._saved_age)
        interval = self._due_age - self._saved_age
        self._next_ns = now_ns + int(1e9 * max(interval / READS, READ_SECONDS_MIN))
        self._is_due = now_ns - self._begin_ns >= 1e9 * self._due_age
        return self._is_due

    def _follow(self, snapshot) -> None:
        """Note the checkpoints that were committed since the last time, and what they cost."""
        assert self.adviser is not None
        commits = [one for one in snapshot.events if one.kind == "checkpoint_committed"]
        self._event = max([self._event, *(one.number for one in snapshot.events)])
        if not commits:
            return
        saving_ns = dict(zip(snapshot.phases, snapshot.totals, strict=False)).get("checkpoint", 0)
        for _ in commits:
            self.adviser.note_save((saving_ns - self._saving_ns) / 1e9 / len(commits))
        self._saving_ns = saving_ns
        self._saved_age = max((commits[-1].time_ns - self._begin_ns) / 1e9, self._saved_age)
        self._due_age = None

    def _informed(self, identity: dict, path: str, failures) -> Adviser:
        """An adviser that knows this rank's earlier attempts, or those that are given."""
        adviser = Adviser()
        given = [float(seconds) for seconds in list(failures)[:GIVEN_MAX]]
        for seconds in given:
            adviser.note_failure(seconds)
        for earlier in () if given or not path else _earlier(identity, path):
            lived = (earlier.end_ns if earlier.ended else earlier.last_ns) - earlier.identity["start_mono_ns"]
            note = adviser.note_alive if earlier.ended in NO_FAILURE else adviser.note_failure
            note(max(lived, 0) / 1e9)
        return adviser


def _earlier(identity: dict, path: str) -> list:
    """Snapshots of the pages of this rank's earlier attempts, the newest HISTORY_MAX."""
    from goodput.rank_page.reader import Reader

    directory, found = os.path.dirname(path), []
    for name in os.listdir(directory):
        if not name.endswith(page.SUFFIX) or name.startswith("."):
            continue
        try:
            with Reader(os.path.join(directory, name)) as reader:
                other = reader.identity
                same = other["run"] == identity["run"] and other["rank"] == identity["rank"]
                if same and other["attempt"] < identity["attempt"]:
                    found.append(reader.snapshot(ALL, ALL))
        except PageError:
            continue
    found.sort(key=lambda one: one.identity["attempt"])
    return found[-HISTORY_MAX:]
