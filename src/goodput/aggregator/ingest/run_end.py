"""Marking a run as ended: only a person, a scheduler or a script knows that a run was cancelled and has not failed.

An end mark (account.EndMark) is set on the newest process of each rank, first in the ledger, then in the store; the
account does the rest (account.facts). While a process was seen alive within the staleness bound the request is refused
unless it is forced. A process that reports life more than SLACK_SECONDS after the mark continues as if it had not been
set, and a new attempt continues the run. The mark's time is on each process's own host clock: when it was last seen,
plus how long ago that was on our clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from msgspec import Struct

from goodput.account import ABANDONED, Attempt, EndMark
from goodput.account.facts import is_stale
from goodput.aggregator.ingest.store import Process, Store
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.threads import in_thread

log = logging.getLogger("goodput.aggregator")
# From a mark set while processes are being killed to their death: Slurm's KillWait and Kubernetes' grace period are
# 30 s, and the agent reports some seconds later.
SLACK_SECONDS = 60.0
# How far the clock of the client may be ahead of ours.
AHEAD_SECONDS = 60.0
RANKS_NAMED_MAX = 8


class EndResult(Struct):
    """Counts of ranks: ended by this request, that had reported their own end, seen alive recently, marked before."""

    run: str
    reason: str
    ended: int
    known: int
    alive: int
    already: int


class RanksAlive(Exception):
    """Ranks of the run were seen alive recently."""

    def __init__(self, run: str, ranks: list[int]):
        named = ", ".join(map(str, ranks[:RANKS_NAMED_MAX])) + ", …" * (len(ranks) > RANKS_NAMED_MAX)
        super().__init__(
            f"run {run!r} is running: {len(ranks)} rank{'s are' if len(ranks) > 1 else ' is'} alive as last "
            f"reported ({named}); end it once they are dead or silent, or use force"
        )


class RunEnder:
    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        *,
        stale_seconds: float,
        clock_ns: Callable[[], int] = time.time_ns,
        on_marked: Callable[[str], object] = lambda run: None,
    ):
        """`on_marked(run)` is called when a run was marked, before the request is answered."""
        self._store, self._ledger, self._stale_seconds = store, ledger, stale_seconds
        self._on_marked = on_marked
        self.clock_ns = clock_ns

    async def end(
        self, run: str, reason: str, *, at_ns: int = 0, force: bool = False, client: str = ""
    ) -> EndResult:
        """Mark a run's processes as ended. Raises KeyError (unknown run), RanksAlive, LedgerError; then nothing changed.

        `reason` is one of account.END_REASONS, `at_ns` the earliest time at which a rank ended, `client` is for the log.
        """
        now_ns = self.clock_ns()
        processes = list(self._store.newest[run].values())
        alive = [one.attempt.rank for one in processes if self._is_alive(one, now_ns)]
        if alive and not force:
            raise RanksAlive(run, sorted(alive))
        unmarked = [one for one in processes if not _is_marked(one, reason, at_ns)]
        marks = [(one.identity, EndMark(reason, at_ns, _until_ns(one, now_ns))) for one in unmarked]
        if marks:
            await in_thread(self._ledger.end, marks, now_ns)
        for identity, mark in marks:
            self._store.end(identity, mark)
        if marks:
            self._on_marked(run)
        ended = sum(not one.attempt.ended for one in unmarked)
        known, already = len(unmarked) - ended, len(processes) - len(unmarked)
        log.info(
            "run %r ended as %s by %s: %d ranks ended, %d had reported their end, %d were marked before, %d alive",
            *(run, reason, client or "an anonymous client", ended, known, already, len(alive)),
        )
        return EndResult(run, reason, ended, known, len(alive), already)

    async def abandon(self, run: str, at_ns: int) -> None:
        """Mark a run as abandoned, with its time ending at `at_ns`, until a process of it shows life again.

        Raises KeyError (unknown run), LedgerError; then nothing changed.
        """
        processes = self._store.newest[run].values()
        marks = [(one.identity, EndMark(ABANDONED, at_ns, _last_known_ns(one.attempt))) for one in processes]
        await in_thread(self._ledger.end, marks, self.clock_ns())
        for identity, mark in marks:
            self._store.end(identity, mark)
        self._on_marked(run)
        log.warning("run %r is abandoned: none of its %d ranks has reported as alive", run, len(marks))

    def _is_alive(self, process: Process, now_ns: int) -> bool:
        attempt = process.attempt
        return attempt.known_end_ns() is None and not is_stale(attempt, now_ns, self._stale_seconds)


def _is_marked(process: Process, reason: str, at_ns: int) -> bool:
    mark = process.attempt.valid_end_mark()
    return mark is not None and (mark.reason, mark.at_ns) == (reason, at_ns)


def _until_ns(process: Process, now_ns: int) -> int:
    """The time on the process's host up to which signs of life do not undo the mark."""
    attempt = process.attempt
    if attempt.received_ns:
        host_now_ns = attempt.seen_ns + max(now_ns - attempt.received_ns, 0)
    else:
        # Known from the ledger alone, so the offset of its clock from ours is unknown.
        host_now_ns = max(attempt.seen_ns, now_ns)
    return max(host_now_ns, _last_known_ns(attempt)) + int(SLACK_SECONDS * 1e9)


def _last_known_ns(attempt: Attempt) -> int:
    """The newest time in what is known of a process."""
    return max(attempt.seen_ns, attempt.last_ns, attempt.rows_end_ns, attempt.end_ns)
