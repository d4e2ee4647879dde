"""What health events cost: the restarts of runs that lost a rank to them.

The rule: an attempt that failed (it reported so, died, or its rank started anew without an end having been seen) is
attributed to an event that hit its rank up to BEFORE_NS earlier, or up to LATE_NS later, since drivers report late. If
the run restarted after it, the restart's cost (down + lost + startup GPU time) counts for one event: the earliest
critical one, else the earliest. This is an attribution by time and place, not a proof. An event and its ranks' ends are
timed by the same host's clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from goodput.access.tokens import EVERYTHING, Access
from goodput.account import Account, Attempt, Run
from goodput.account.account import NO_FAILURE
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.ingest.health_log import HealthLog, kind_of
from goodput.aggregator.records import HealthKey
from goodput.slices import Slices
from goodput.wire import schema

BEFORE_NS, LATE_NS = 600 * 10**9, 60 * 10**9

Entry = tuple[HealthKey, schema.Health]


def restart_costs(run: Run, account: Account, events: Iterable[Entry]) -> dict[HealthKey, int]:
    """GPU-ns by event, of the events that a restart of the run is attributed to; see the module's rule."""
    failures = _failures(run, account)
    claims: dict[int, tuple] = {}  # by restart
    for key, event in events if failures else ():
        claim = (event.severity != "critical", event.time_ns, key)
        for name, rank in event.hits:
            for end_ns, number in failures.get(rank, ()) if name == run.name else ():
                if event.time_ns - LATE_NS <= end_ns <= event.time_ns + BEFORE_NS:
                    claims[number] = min(claim, claims.get(number, claim))
    costs: Counter = Counter()
    for restart in account.restarts:
        if restart.attempt in claims:
            costs[claims[restart.attempt][-1]] += restart.gpu_ns()
    return dict(costs)


def _failures(run: Run, account: Account) -> dict[int, list[tuple[int, int]]]:
    """By rank: (when an attempt failed, the number of the restart that followed)."""
    numbers = sorted(restart.attempt for restart in account.restarts)
    found: dict[int, list[tuple[int, int]]] = {}
    for rank, attempts in run.by_rank().items() if numbers else ():
        for attempt, later in zip(attempts, [*attempts[1:], None], strict=True):
            end_ns = _failed_ns(attempt, later is not None)
            after = next((number for number in numbers if number > attempt.attempt), None)
            if end_ns is not None and after is not None:
                found.setdefault(rank, []).append((end_ns, after))
    return found


def _failed_ns(attempt: Attempt, replaced: bool) -> int | None:
    """When an attempt failed; None where it did not, or where that is unknown."""
    if attempt.end_reason() in NO_FAILURE:
        return None
    known = attempt.known_end_ns()
    return attempt.beat_ns() if known is None and replaced else known


class HealthHit(Struct):
    """A rank whose process was on the device when the event occurred."""

    run: str
    rank: int


class HealthEvent(Struct):
    """Something that happened to a node's hardware; `device` is a GPU's uuid or a link, `code` e.g. the XID.

    `gpu_seconds` is what restarts cost (down, lost and startup GPU time) that are attributed to this event: those after
    an attempt of a rank that it hit failed, from 60 s before the event, since drivers report late, to 10 minutes after
    it. Each restart is attributed to one event: the earliest critical one, else the earliest. Null where there is none;
    `cost` is the same in dollars, null without a price.
    """

    node: str
    number: int
    time: float
    kind: str
    device: str
    code: int
    name: str
    severity: str
    text: str
    hits: list[HealthHit]
    gpu_seconds: float | None
    cost: float | None


class HealthEvents(Struct):
    """Health events of all nodes, newest first."""

    events: list[HealthEvent]


class RunHealthEvents(Struct):
    """Health events that hit a run, newest first, with this run's ranks and costs."""

    run: str
    events: list[HealthEvent]


class _RunCosts(NamedTuple):
    """What a run's restarts cost in GPU-ns, by the event that they are attributed to, and its price."""

    by_event: dict[HealthKey, int]
    gpu_hour_cost: float | None


class HealthCosts:
    """Health events with the ranks that they hit and what they cost."""

    def __init__(self, log: HealthLog, accounts: Accounts):
        self._log, self._accounts = log, accounts

    def _finding_account(self, name: str) -> Slices[Account | None]:
        """The account of a run: in a large installation the last one, None where it has none yet or is unknown."""
        if name not in self._accounts.store.runs:
            return None
        if self._accounts.is_large():
            return self._accounts.last_of(name)
        return (yield from self._accounts.computing(name))

    def _costs(self, name: str, account: Account | None) -> dict[HealthKey, int]:
        """GPU-ns by event of a run."""
        run = self._accounts.store.runs.get(name)
        if run is None or account is None or not self._log.has_hit(name):
            return {}
        return restart_costs(run, account, self._log.of_run(name))

    async def of_run(self, name: str, **filters) -> RunHealthEvents:
        """A run's events, with the ranks of this run that they hit."""
        events = await in_slices(self._finding(self._log.of_run(name), name.__eq__, **filters))
        return RunHealthEvents(name, events)

    async def all(self, run: str | None = None, access: Access = EVERYTHING, **filters) -> HealthEvents:
        """All events, or those that hit `run`.

        A token for some runs sees the events that hit one of those, without the other runs' ranks.
        """
        entries = self._log.all() if run is None else self._log.of_run(run)
        if not access.is_of_all:
            entries = [entry for entry in entries if any(access.may(name) for name, _ in entry[1].hits)]
            entries = entries if run is None or access.may(run) else []
        return HealthEvents(await in_slices(self._finding(entries, access.may, **filters)))

    def _finding(
        self, entries: list[Entry], is_visible, *, limit: int, node=None, severity=None, since_ns=0
    ) -> Slices[list[HealthEvent]]:
        """The newest `limit` that match the filters, newest first. Yields after each run that they hit."""
        matching = [
            (key, event)
            for key, event in entries
            if event.time_ns >= since_ns and node in (None, key[0]) and severity in (None, event.severity)
        ]
        newest = heapq.nsmallest(limit, matching, key=lambda entry: (-entry[1].time_ns, entry[0]))
        yield
        visible = {run for _, event in newest for run, _ in event.hits if is_visible(run)}
        costs: dict[str, _RunCosts] = {}
        for run in sorted(visible):
            account = None
            with suppress(KeyError):  # It was deleted meanwhile.
                account = yield from self._finding_account(run)
            if found := self._costs(run, account):
                costs[run] = _RunCosts(found, account.gpu_hour_cost() if account else None)
            yield
        return [self._event(key, event, visible, costs) for key, event in newest]

    def _event(
        self, key: HealthKey, event: schema.Health, visible: set[str], costs: dict[str, _RunCosts]
    ) -> HealthEvent:
        spent = [(one.by_event[key], one.gpu_hour_cost) for one in costs.values() if key in one.by_event]
        dollars = [ns / 3.6e12 * price for ns, price in spent if price is not None]
        return HealthEvent(
            node=key[0],
            number=event.number,
            time=event.time_ns / 1e9,
            kind=event.kind,
            device=event.device,
            code=event.code,
            name=event.name,
            severity=event.severity,
            text=event.text,
            hits=[HealthHit(run, rank) for run, rank in event.hits if run in visible],
            gpu_seconds=sum(ns for ns, _ in spent) / 1e9 if spent else None,
            cost=sum(dollars) if spent and len(dollars) == len(spent) else None,
        )

    def counted(self, name: str, account: Account) -> tuple[Counter, Counter]:
        """For the series of a run with this account: events by (kind, severity), and GPU-ns by kind."""
        events = dict(self._log.of_run(name))
        spent: Counter = Counter()
        for key, ns in self._costs(name, account).items():
            spent[kind_of(events[key])] += ns
        return Counter((kind_of(event), event.severity) for event in events.values()), spent
