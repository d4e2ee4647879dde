"""Stories of runs, built from the ledger's rows in a thread of History, and cached; their marks for boards are kept.

Of a run with more than ROWS_MAX rows the ranks that deviate most are read, and evenly spread others that stand for the
rest; waiting for slow ranks, pauses and paces are then scaled, and the story says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from goodput.account import FINAL_STATUSES, Account, Run, document
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts, HealthEvent
from goodput.aggregator.accounts.history import ANONYMOUS, INTERNAL, HistoryError
from goodput.aggregator.accounts.past import Check, Past
from goodput.aggregator.accounts.recorded_steps import key_of, ranks_by_excess, step_states
from goodput.aggregator.accounts.result_cache import ResultCache
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.ledger.ledger import Ledger
from goodput.causes import explain
from goodput.story.build import build_story
from goodput.story.document_types import Story
from goodput.story.incident import Hardware
from goodput.story.marks import Mark, marks_of
from goodput.story.recording import Recording

ROWS_MAX = 400_000  # some 5 us each
RANKS_LEAST, WORST_MAX = 16, 8
HARDWARE_MAX = 1000
# A story is built for a board's marks at most once in EVERY_SECONDS, and in EVERY_TIMES the time that the last one took.
EVERY_SECONDS, EVERY_TIMES = 300.0, 300
RANKS_MAX = 1024  # of a run whose story is built for its marks alone
RUNS_MAX = 256  # whose marks are kept

log = logging.getLogger("goodput.aggregator")


class Stories:
    """Stories by run."""

    def __init__(self, accounts: Accounts, health: HealthCosts):
        self._accounts, self._health, self._cache = accounts, health, ResultCache()
        self._marks: dict[str, list[Mark]] = {}  # by run, the newest story's last
        self._task: asyncio.Task[None] | None = None
        self._next_seconds: dict[str, float] = {}  # by run, monotonic
        self._final: dict[str, int | None] = {}  # by run that is over: the revision of its story
        self._idle_until_seconds = 0.0

    async def get(self, run: str, owner: str | None = ANONYMOUS) -> Story:
        """The story of a run, for the token with the id `owner`. Raises KeyError, HistoryError, QueueFull."""
        account = await self._accounts.latest(run)
        return await self._cache.get(
            run, lambda: self._compute(account, owner), self._accounts.final_revision(account)
        )

    def marks(self, run: str) -> list[Mark]:
        """The marks of the run's newest story."""
        return self._marks.get(run, [])

    def request_seldom(self, account: Account) -> None:
        """Build the story for its marks unless there is a recent one: one at a time, all in a three-hundredth of a core."""
        now, name = time.monotonic(), account.run
        if self._task is not None or now < self._idle_until_seconds or len(account.ranks) > RANKS_MAX:
            return
        final = self._accounts.final_revision(account)
        if now < self._next_seconds.get(name, 0.0) or (final is not None and self._final.get(name) == final):
            return
        self._next_seconds[name] = now + EVERY_SECONDS
        self._task = asyncio.get_running_loop().create_task(self._refresh(account, final))

    async def _refresh(self, account: Account, final: int | None) -> None:
        began = time.monotonic()
        try:
            await self.get(account.run, INTERNAL)
            if final is not None:
                self._final[account.run] = final
        except (HistoryError, KeyError) as error:
            log.warning("run %r: its story could not be built: %s", account.run, error)
        except Exception:
            log.exception("run %r: its story could not be built", account.run)
        finally:
            self._task = None
            self._idle_until_seconds = time.monotonic() + EVERY_TIMES * (time.monotonic() - began)

    def keep(self, runs) -> None:
        """Forget the marks of all other runs."""
        for held in (self._marks, self._next_seconds, self._final):
            for run in [run for run in held if run not in runs]:
                del held[run]

    def clear(self) -> int:
        """Drop all stories; returns how many there were."""
        return self._cache.clear()

    async def _compute(self, account: Account, owner: str | None) -> tuple[Story, float]:
        hang = await in_slices(self._accounts.judging(account.run, account=account))
        past = self._accounts.past(account)
        verdict = None if hang is None else self._accounts.hangs.document(account.run, hang)
        events = (await self._health.of_run(account.run, limit=HARDWARE_MAX)).events
        story, took = await self._accounts.history.run(
            owner, _story_of, past, account, verdict, list(map(hardware_of, events))
        )
        self._marks.pop(account.run, None)
        self._marks[account.run] = marks_of(story, account.status in FINAL_STATUSES)
        while len(self._marks) > RUNS_MAX:
            del self._marks[next(iter(self._marks))]
        return story, took


def hardware_of(event: HealthEvent) -> Hardware:
    ranks = tuple(sorted({hit.rank for hit in event.hits}))
    what = (event.kind, event.device, event.code, event.name, event.severity, event.text)
    return Hardware(event.node, event.time, *what, ranks)


def _story_of(
    ledger: Ledger, past: Past, account: Account, hang: Any, hardware: list[Hardware], check: Check
) -> Story:
    recording = recorded(ledger, past.run, ranks_by_excess(account), check)
    found = cast("dict[str, Any]", document(account, explain(account)))
    return build_story({**found, "hang": hang}, recording, hardware)


def recorded(ledger: Ledger, run: Run, worst: Sequence[int], check: Check) -> Recording:
    """The steps of a run's ranks, or of some of them; `worst` are all ranks with steps, the slowest first."""
    chosen = _chosen(run, worst)
    recording = Recording(weight=max(len(worst), 1) / max(len(chosen), 1))
    attempts = {key: one for key, one in run.attempts.items() if key[0] in chosen}
    processes = [one for one in ledger.sources(run.name) if key_of(one) in attempts]
    for process, pages in groupby(ledger.tails(processes, [0] * len(processes)), key=itemgetter(0)):
        attempt = attempts[key_of(process)]
        for found in step_states(process, (page.values for _, page in pages), check):
            recording.add_rows(attempt, found.steps, found.counts, found.states, found.ends)
    return recording


def _chosen(run: Run, worst: Sequence[int]) -> set[int]:
    rows: dict[int, int] = {}
    for (rank, _), attempt in run.attempts.items():
        rows[rank] = rows.get(rank, 0) + attempt.top_number
    if sum(rows[rank] for rank in worst) <= ROWS_MAX:
        return set(worst)
    first, rest = list(worst[:WORST_MAX]), sorted(worst[WORST_MAX:])
    fits = ROWS_MAX // max(max(rows[rank] for rank in worst), 1)
    many = min(max(fits, RANKS_LEAST) - len(first), len(rest))
    return {*first, *(rest[i * len(rest) // many] for i in range(many))}
