"""What removing each cause of a run would bring, by replay of its newest steps (goodput.whatif).

They are read from the ledger and replayed in a thread of History on request, for a run at most once a minute and
so seldom that it takes a fiftieth of a core. Accounts have the gains of the last replay, so no request waits for
one, but the first for a run, for FIRST_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from goodput.account import Account, Run
from goodput.account.account import ReplayedGains
from goodput.aggregator.accounts.history import History, HistoryError
from goodput.aggregator.accounts.past import Check, Past
from goodput.aggregator.accounts.recorded_steps import key_of, ranks_by_excess, step_states
from goodput.aggregator.fair_queue import INTERNAL
from goodput.aggregator.ledger.ledger import Ledger
from goodput.whatif.gains import replayed_gains
from goodput.whatif.steps import Recorder

log = logging.getLogger("goodput.aggregator")
EVERY_SECONDS, EVERY_TIMES = 60.0, 50  # or so many times as long as it took
SELDOM_TIMES = 500  # where nobody but the series asks
FIRST_SECONDS, RETRY_SECONDS = 1.0, 10.0  # a run that has just begun has too few steps
RUNS_MAX = 256  # whose gains are kept: those that were replayed last
# Newest steps of all ranks together. Of more ranks the slowest, and others that are evenly spread, stand for all.
ROWS_MAX, RANKS_MAX, WORST_MAX = 100_000, 1024, 8


class Replays:
    """The gains of runs by name; `done` is called with the name and the gains of a run that was replayed."""

    def __init__(self, history: History, done: Callable[[str, ReplayedGains], None]):
        self._history, self._done = history, done
        self._known: dict[str, ReplayedGains | None] = {}  # the last replayed at the end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._next_seconds: dict[str, float] = {}  # by run, monotonic
        self._final: dict[str, int] = {}  # by run that is over: its revision when it was replayed
        self._idle_until_seconds = 0.0

    def of(self, run: str) -> ReplayedGains | None:
        """What the last replay of a run found, None without one."""
        return self._known.get(run)

    async def refresh(self, account: Account, past: Callable[[], Past], revision: int | None) -> None:
        """As `request`; the first replay of a run is waited for, though not for long."""
        task = self.request(account, past, revision)
        if task is not None and account.run not in self._known:
            await asyncio.wait({task}, timeout=FIRST_SECONDS)

    def request_seldom(self, account: Account, past: Callable[[], Past], revision: int | None) -> None:
        """As `request`, for callers that request all runs repeatedly: all together wait SELDOM_TIMES as long as each took."""
        if time.monotonic() >= self._idle_until_seconds:
            self.request(account, past, revision)

    def request(
        self, account: Account, past: Callable[[], Past], revision: int | None
    ) -> asyncio.Task[None] | None:
        """The replay of the run that is under way, begun now unless there is a recent one; else None.

        `revision` is that of a run that is over, which is replayed once.
        """
        name = account.run
        if name not in self._tasks:
            is_known = revision is not None and self._final.get(name) == revision
            if is_known or time.monotonic() < self._next_seconds.get(name, 0.0):
                return None
            replay = self._replay(account, past(), revision)
            self._tasks[name] = asyncio.get_running_loop().create_task(replay)
        return self._tasks[name]

    def forget(self, run: str) -> None:
        """Drop what is known of a run that was deleted or stored away."""
        for held in (self._known, self._next_seconds, self._final):
            held.pop(run, None)

    async def _replay(self, account: Account, past: Past, revision: int | None) -> None:
        name, found, took = account.run, None, 0.0
        try:
            found, took = await self._history.run(INTERNAL, _gains_of, past, account)
        except HistoryError as error:
            log.warning("run %r: its steps could not be replayed: %s", name, error)
        except Exception:
            log.exception("run %r: its steps could not be replayed", name)
        finally:
            del self._tasks[name]
        self._idle_until_seconds = time.monotonic() + SELDOM_TIMES * took
        every = EVERY_SECONDS if found else RETRY_SECONDS
        self._next_seconds[name] = time.monotonic() + max(every, EVERY_TIMES * took)
        if revision is not None:
            self._final[name] = revision
        # After a restart there are too few new steps for a while.
        found = found or self._known.get(name)
        self._known.pop(name, None)
        self._known[name] = found
        if found is not None:
            self._done(name, found)
        while len(self._known) > RUNS_MAX:
            self.forget(next(iter(self._known)))


def _gains_of(ledger: Ledger, past: Past, account: Account, check: Check) -> ReplayedGains | None:
    recorder = recorded(ledger, past.run, ranks_by_excess(account), check)
    check()
    return replayed_gains(account, recorder)


def recorded(ledger: Ledger, run: Run, worst: Sequence[int], check: Check) -> Recorder:
    """All steps of a run where these are at most ROWS_MAX, else the newest of the newest attempt of each rank.

    `worst` are all ranks with steps, the slowest first.
    """
    chosen = _chosen(worst)
    attempts = {key: one for key, one in run.attempts.items() if key[0] in chosen and one.top_number}
    recorder = Recorder(weight=max(len(worst), 1) / max(len(chosen), 1))
    after = dict.fromkeys(attempts, 0)
    if sum(one.top_number for one in attempts.values()) > ROWS_MAX:
        made = Counter[int]()
        for (rank, _), one in attempts.items():
            made[rank] += one.top_number - 1
        after.clear()
        each = ROWS_MAX // len(chosen)
        for rank, number in dict(sorted(attempts)).items():
            newest = attempts[rank, number]
            # The first of the rows has all time before it, and is left out.
            after[rank, number] = max(newest.top_number - each - 1, 0)
            recorder.add_made(newest, made[rank] - min(each, newest.top_number - 1))
    processes = [one for one in ledger.sources(run.name) if key_of(one) in after]
    tails = ledger.tails(processes, [after[key_of(one)] for one in processes])
    for key, pages in groupby(tails, key=lambda one: key_of(one[0])):
        (process, first), *rest = pages
        values = [first.values, *(page.values for _, page in rest)]
        for found in step_states(process, values, check):
            recorder.add_columns(attempts[key], found.steps, found.counts, found.states)
    return recorder


def _chosen(worst: Sequence[int]) -> set[int]:
    if len(worst) <= RANKS_MAX:
        return set(worst)
    rest, many = sorted(worst[WORST_MAX:]), RANKS_MAX - WORST_MAX
    return {*worst[:WORST_MAX], *(rest[i * len(rest) // many] for i in range(many))}
