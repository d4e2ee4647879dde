"""Stories of runs, told from the ledger's rows in a thread of History, and cached.

Of a run with more than ROWS_MAX rows the ranks that deviate most are read, and evenly spread others that stand for the
rest; waiting for slow ranks, pauses and paces are then scaled, and the story says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from goodput.account import Account, Run, document
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts, HealthEvent
from goodput.aggregator.accounts.history import ANONYMOUS
from goodput.aggregator.accounts.past import Check, Past
from goodput.aggregator.accounts.recorded_steps import ranks_by_excess, step_states
from goodput.aggregator.accounts.result_cache import ResultCache
from goodput.aggregator.ledger.ledger import Ledger
from goodput.causes import explain
from goodput.story.document_types import Story
from goodput.story.incident import Hardware
from goodput.story.recording import Recording
from goodput.story.tell import tell

ROWS_MAX = 400_000  # some 5 us each
RANKS_LEAST, WORST_MAX = 16, 8
HARDWARE_MAX = 1000
BLOCKS_AT_ONCE = 4


class Stories:
    """Stories by run."""

    def __init__(self, accounts: Accounts, health: HealthCosts):
        self._accounts, self._health, self._cache = accounts, health, ResultCache()

    async def get(self, run: str, owner: str = ANONYMOUS) -> Story:
        """The story of a run, for the token with the id `owner`. Raises KeyError, HistoryError, QueueFull."""
        account = await self._accounts.latest(run)
        return await self._cache.get(
            run, lambda: self._compute(account, owner), self._accounts.final_revision(account)
        )

    def clear(self) -> int:
        """Drop all stories; returns how many there were."""
        return self._cache.clear()

    async def _compute(self, account: Account, owner: str) -> tuple[Story, float]:
        past, hang = self._accounts.past(account), self._accounts.hang(account.run, account=account)
        verdict = None if hang is None else self._accounts.hangs.document(account.run, hang)
        events = self._health.of_run(account.run, limit=HARDWARE_MAX).events
        return await self._accounts.history.run(
            owner, _story_of, past, account, verdict, list(map(hardware_of, events))
        )


def hardware_of(event: HealthEvent) -> Hardware:
    ranks = tuple(sorted({hit.rank for hit in event.hits}))
    what = (event.kind, event.device, event.code, event.name, event.severity, event.text)
    return Hardware(event.node, event.time, *what, ranks)


def _story_of(
    ledger: Ledger, past: Past, account: Account, hang: Any, hardware: list[Hardware], check: Check
) -> Story:
    recording = recorded(ledger, past.run, ranks_by_excess(account), check)
    found = cast("dict[str, Any]", document(account, explain(account)))
    return tell({**found, "hang": hang}, recording, hardware)


def recorded(ledger: Ledger, run: Run, worst: Sequence[int], check: Check) -> Recording:
    """The steps of a run's ranks, or of some of them; `worst` are all ranks with steps, the slowest first."""
    chosen = _chosen(run, worst)
    recording = Recording(weight=max(len(worst), 1) / max(len(chosen), 1))
    for process in ledger.processes(run.name):
        key = process.identity.rank, process.identity.attempt
        if key[0] in chosen and key in run.attempts:
            pages = ledger.columns(process, page_blocks=BLOCKS_AT_ONCE)
            attempt = run.attempts[key]
            for found in step_states(process, (page.values for page in pages), check):
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
