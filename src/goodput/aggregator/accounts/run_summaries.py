"""The list of runs, page by page, newest run first, or first those that are not over.

A run's summary is cached until the run changes, and for AGE_SECONDS at most while a run without reports grows older. A
page of a thousand cached runs takes milliseconds. In a small installation accounts are computed for it, some milliseconds
per thousand ranks with other requests in between; in a large one the rows are of the last accounts, each up to its `end`,
and a run that has none yet is PENDING.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from goodput.access.tokens import EVERYTHING
from goodput.account import FINAL_STATUSES, Account, figures
from goodput.account.states import INDEX, STATES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.slices import in_slices
from goodput.causes import explain
from goodput.slices import Slices

AGE_SECONDS = 10.0
PENDING = "pending"

StoredSummaries = Callable[[list[str]], Awaitable["dict[str, RunSummary]"]]


class RunCulprit(Struct):
    """What the others of a run wait for, in a hang or in each step: a rank and its host, or a stage of the pipeline."""

    rank: int | None
    host: str | None
    stage: int | None


class RunSummary(Struct):
    """A run in one row. `culprit` is null where nothing stands out.

    `states` has GPU-seconds of the states that occur; waste is what was not productive, its cost in dollars or null
    without a price. `gpus` are those of all its ranks; where `is_on_cpu` there are none, and seconds are of processes.
    `end` of a running run is the time up to which the row counts: that of one whose status is `pending`, since its first
    account is being computed, counts nothing and ends where the run starts.
    """

    run: str
    status: str
    start: float
    end: float
    world_size: int
    gpu_seconds: float
    goodput: float | None
    mfu: float | None
    restarts: int
    leading_cause: str | None
    hang: bool
    states: dict[str, float]
    waste_gpu_seconds: float
    cost: float | None
    waste_cost: float | None
    culprit: RunCulprit | None = None
    gpus: int = 0
    is_on_cpu: bool = False


class RunPage(Struct):
    """Runs in the requested order; `total` counts all that match, `truncated` is true where more follow the last one here."""

    runs: list[RunSummary]
    total: int
    truncated: bool


class _Cached(NamedTuple):
    summary: RunSummary
    account: Account
    revision: int
    at_seconds: float


class RunSummaries:
    """Summaries by run name."""

    def __init__(self, accounts: Accounts, stored: StoredSummaries | None = None):
        """`stored` has those of runs that are in the ledger alone; it may bring back a run without one."""
        self._accounts, self._stored = accounts, stored
        self._cached: dict[str, _Cached] = {}

    async def page(
        self,
        limit: int,
        offset: int = 0,
        search: str = "",
        may: Callable[[str], bool] = EVERYTHING.may,
        open_first: bool = False,
    ) -> RunPage:
        """`limit` runs from `offset` on, of those that the client `may` see and whose name contains `search`.

        With `open_first` those in the ledger alone, which are over, come last.
        """
        store, search = self._accounts.store, search.casefold()
        self._accounts.last_read = time.monotonic()
        starts = {**store.stored, **store.starts}
        names = [name for name in filter(may, starts) if search in name.casefold()]
        names.sort(key=lambda name: (open_first and name in store.stored, -starts[name], name))
        shown = names[offset : offset + limit]
        read = self._stored
        stored = [name for name in shown if name in store.stored]
        found = await read(stored) if stored and read else {}
        self._cached = {name: one for name, one in self._cached.items() if name in store.runs}
        computed = await in_slices(self._summaries([name for name in shown if name not in found]))
        found |= {row.run: row for row in computed}
        left = [name for name in shown if name not in found and name in store.stored]
        found |= await read(left) if left and read else {}
        rows = [found[name] for name in shown if name in found]
        return RunPage(rows, total=len(names), truncated=offset + len(shown) < len(names))

    def _summaries(self, names: list[str]) -> Slices[list[RunSummary]]:
        """Summaries of these runs, without those that are deleted meanwhile."""
        rows, is_large = [], self._accounts.is_large()
        for name in names:
            with suppress(KeyError):
                if is_large and not self._accounts.is_expired(name):
                    rows.append(self._last(name))
                else:
                    account = yield from self._accounts.computing(name)
                    rows.append(self.summary(name, account))
            yield
        return rows

    def summary(self, name: str, account: Account) -> RunSummary:
        """One run by its account. Its hang is evaluated each time, since that changes without a report."""
        summary = self._summary(name, account)
        hang = self._accounts.hang(name, account=account) if summary.status == "running" else None
        if hang is None:
            return summary
        who = hang.culprit
        return replace(
            summary, hang=True, culprit=who and RunCulprit(rank=who.rank, host=who.host, stage=None)
        )

    def _last(self, name: str) -> RunSummary:
        """One run by its last account and the last look for hangs."""
        account, store = self._accounts.last_of(name), self._accounts.store
        if account is None:
            return _pending(name, store.starts[name] / 1e9, max(store.worlds.get(name, ()), default=0))
        summary = self._summary(name, account)
        hangs = summary.status == "running" and self._accounts.hangs.is_hanging(name)
        return replace(summary, hang=hangs)

    def _summary(self, name: str, account: Account) -> RunSummary:
        revision, now = self._accounts.store.revisions[name], time.monotonic()
        cached = self._cached.get(name)
        if cached is not None and cached.revision == revision:
            status = cached.summary.status
            if status in FINAL_STATUSES or (status != "running" and now - cached.at_seconds < AGE_SECONDS):
                return cached.summary
        if cached is None or cached.account is not account:
            cached = self._cached[name] = _Cached(summary_of(account), account, revision, now)
        return cached.summary


def _pending(run: str, start: float, world_size: int) -> RunSummary:
    """A run without an account: nothing is counted yet."""
    return RunSummary(
        run=run,
        status=PENDING,
        start=start,
        end=start,
        world_size=world_size,
        gpu_seconds=0.0,
        goodput=None,
        mfu=None,
        restarts=0,
        leading_cause=None,
        hang=False,
        states={},
        waste_gpu_seconds=0.0,
        cost=None,
        waste_cost=None,
    )


def _culprit(account: Account) -> RunCulprit | None:
    """The slow rank or stage."""
    found, stage = account.straggler.culprit(), account.straggler.culprit_stage()
    if found is not None:
        return RunCulprit(rank=found[0], host=account.hosts().get(found[0], ""), stage=None)
    return None if stage is None else RunCulprit(rank=None, host=None, stage=stage)


def summary_of(account: Account) -> RunSummary:
    gpu_ns, dollars, causes = account.gpu_ns(), figures.money(account), explain(account, advised=False)
    return RunSummary(
        run=account.run,
        status=account.status,
        start=account.start_ns / 1e9,
        end=account.end_ns / 1e9,
        world_size=account.world_size,
        gpu_seconds=account.wall_gpu_ns() / 1e9,
        goodput=account.ratio("goodput"),
        mfu=account.ratio("mfu"),
        restarts=len(account.restarts),
        leading_cause=next(iter(figures.advice_order(account, causes)), None),
        hang=False,
        states={state: ns / 1e9 for state, ns in zip(STATES, gpu_ns, strict=True) if ns},
        waste_gpu_seconds=(account.wall_gpu_ns() - gpu_ns[INDEX["productive"]]) / 1e9,
        cost=dollars and dollars["total"],
        waste_cost=dollars and dollars["total"] - (dollars["states"]["productive"] or 0.0),
        culprit=_culprit(account),
        gpus=0 if account.is_on_cpu else sum(account.of("all_devices")),
        is_on_cpu=account.is_on_cpu,
    )
