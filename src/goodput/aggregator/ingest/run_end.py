"""To take a person's or a script's word that a run is over: nobody else can tell a cancelled run from a dead one.

In: a run's name, why it is over, since when at the earliest. Out: an account.EndMark on the newest process of each rank that
has not finished, in the ledger first and then in the store; the account does the rest (account.facts).

A process that lives is none that has ended: while one was seen alive within the aggregator's staleness bound the word is
refused, unless it is forced. What is said concerns the processes that are here now. One that shows life more than
SLACK_SECONDS after that goes on as if nothing had been said, and so does the run with a new attempt. The moment is
reckoned on each process's own host: when it was last looked at, and how long ago that was by our clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from goodput.account import FINAL_STATUSES, EndMark
from goodput.account.facts import is_stale
from goodput.aggregator.ingest.store import Process, Store
from goodput.aggregator.ledger.ledger import Ledger

log = logging.getLogger("goodput.aggregator")
REASONS = FINAL_STATUSES
# Between a word given while processes are being killed and their death: Slurm's KillWait is 30 s, as is Kubernetes'
# grace period, and an agent tells some seconds later.
SLACK_SECONDS = 60.0
# A clock of who says it may be ahead of ours by so much.
AHEAD_SECONDS = 60.0
NAMED_MAX = 8


class Alive(Exception):
    """Processes of the run were seen alive lately. `ranks` are the first of them, `count` is how many there are."""

    def __init__(self, run: str, ranks: list[int], count: int):
        shown = ", ".join(map(str, ranks[:NAMED_MAX])) + ", …" * (count > NAMED_MAX)
        super().__init__(
            f"run {run!r} goes on: {count} rank{'s are' if count > 1 else ' is'} alive as last reported ({shown}); "
            "once they are dead or silent it can be ended, or now by force"
        )
        self.ranks, self.count = ranks, count


class Ending:
    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        *,
        stale_seconds: float,
        clock_ns: Callable[[], int] = time.time_ns,
    ):
        self._store, self._ledger, self._stale_seconds = store, ledger, stale_seconds
        self._clock_ns = clock_ns

    async def end(self, run: str, reason: str, *, at_ns: int = 0, force: bool = False, who: str = "") -> dict:
        """End what is here of a run. Raises KeyError for one that is not there, Alive, LedgerError (nothing is changed).

        Returns `ended`, the ranks whose end this tells; `known`, those that had told their own; `alive`, those that had
        been seen alive lately; `already`, those of which the same was said before.
        """
        now_ns = self._clock_ns()
        processes = list(self._store.newest[run].values())
        alive = [one.attempt.rank for one in processes if self._is_alive(one, now_ns)]
        if alive and not force:
            raise Alive(run, sorted(alive), len(alive))
        anew = [one for one in processes if not _is_said(one, reason, at_ns)]
        said = [one for one in anew if one.attempt.ended != "finished"]
        ends = [(one.identity, EndMark(reason, at_ns, _until_ns(one, now_ns))) for one in said]
        if ends:
            await asyncio.to_thread(self._ledger.end, ends, now_ns)
        for identity, over in ends:
            self._store.end(identity, over)
        ended = sum(not one.attempt.ended for one in said)
        known, already = len(anew) - ended, len(processes) - len(anew)
        log.info(
            "run %r ended as %s by %s: %d ranks ended, %d had told their end, %d of which it was said before, %d alive",
            *(run, reason, who or "everybody", ended, known, already, len(alive)),
        )
        return {"ended": ended, "known": known, "already": already, "alive": len(alive)}

    def _is_alive(self, process: Process, now_ns: int) -> bool:
        attempt = process.attempt
        return attempt.known_end_ns() is None and not is_stale(attempt, now_ns, self._stale_seconds)


def _is_said(process: Process, reason: str, at_ns: int) -> bool:
    attempt = process.attempt
    return attempt.is_marked_ended() and attempt.end_mark.reason == reason and attempt.end_mark.at_ns == at_ns


def _until_ns(process: Process, now_ns: int) -> int:
    """Up to when, on the process's host, signs of life are of before now."""
    attempt = process.attempt
    if attempt.heard_ns:
        there_ns = attempt.seen_ns + max(now_ns - attempt.heard_ns, 0)
    else:
        # Known from the ledger alone: nobody knows how its clock goes beside ours.
        there_ns = max(attempt.seen_ns, now_ns)
    known_ns = max(there_ns, attempt.last_ns, attempt.rows_end_ns, attempt.end_ns)
    return known_ns + int(SLACK_SECONDS * 1e9)
