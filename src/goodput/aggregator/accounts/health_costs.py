"""What health events have cost: the restarts of runs that lost a rank to them; and the events as documents.

In: the health log, a run, its account. Out: GPU-ns by event, and plain values for the API and the series.

The rule: an attempt of a rank that ended by failure (it said so, it died, or the rank began anew without its end having
been seen) is put down to an event that had hit that rank up to BEFORE_NS earlier, or up to LATE_NS later, since drivers
report late. If the run was restarted after it, what that restart cost (down + lost + startup GPU time) is counted to
one event: the earliest critical one, else the earliest. It is an attribution by time and place, not a proof.
An event's time and its ranks' ends are of the same host's clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from goodput.access.tokens import EVERYTHING, Access
from goodput.account import Account, Attempt, Run
from goodput.account.account import NO_FAILURE
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.ingest.health_log import HealthLog, kind_of
from goodput.aggregator.records import HealthKey
from goodput.wire import schema

BEFORE_NS, LATE_NS = 600 * 10**9, 60 * 10**9

Entry = tuple[HealthKey, schema.Health]


def restart_costs(run: Run, account: Account, events: Iterable[Entry]) -> dict[HealthKey, int]:
    """GPU-ns by event, of those that a restart of the run is counted to; see the module."""
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
    """By rank: when an attempt failed, and the number of the restart that followed."""
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
    """When an attempt failed; None where it did not, or nobody knows."""
    if attempt.how() in NO_FAILURE:
        return None
    known = attempt.known_end_ns()
    return attempt.beat_ns() if known is None and replaced else known


class HealthView:
    """Events with what they hit and have cost."""

    def __init__(self, log: HealthLog, accounts: Accounts):
        self._log, self._accounts = log, accounts
        self._kept: dict[
            str, tuple[tuple, dict[HealthKey, int]]
        ] = {}  # by run: what costs are made from, and they

    def costs(self, name: str) -> dict[HealthKey, int]:
        """GPU-ns by event of a run; empty for a run that is not there."""
        run = self._accounts.store.runs.get(name)
        if run is None or not self._log.has_hit(name):
            return {}
        account = self._accounts.account(name)
        made_from = (self._accounts.store.changes.get(name), account.end_ns, self._log.seen())
        kept = self._kept.get(name)
        if kept is None or kept[0] != made_from:
            kept = self._kept[name] = (made_from, restart_costs(run, account, self._log.of_run(name)))
        return kept[1]

    def of_run(self, name: str, **wanted) -> list[dict]:
        """A run's events, newest first, with the ranks of this run that they hit. KeyError for one that is not there."""
        self._accounts.store.runs[name]
        return self._documents(self._log.of_run(name), name.__eq__, **wanted)

    def all(self, run: str | None = None, access: Access = EVERYTHING, **wanted) -> list[dict]:
        """All events, newest first, or those that hit a run.

        Who may see some runs only, sees the events that hit one of those, and nothing of the other runs.
        """
        entries = self._log.all() if run is None else self._log.of_run(run)
        if not access.is_of_all:
            entries = [entry for entry in entries if any(access.may(name) for name, _ in entry[1].hits)]
            entries = entries if run is None or access.may(run) else []
        return self._documents(entries, access.may, **wanted)

    def _documents(self, entries: list[Entry], is_shown, *, limit: int, node=None, severity=None, since_ns=0):
        chosen = [
            (key, event)
            for key, event in entries
            if event.time_ns >= since_ns and node in (None, key[0]) and severity in (None, event.severity)
        ]
        newest = heapq.nsmallest(limit, chosen, key=lambda entry: (-entry[1].time_ns, entry[0]))
        named = {run for _, event in newest for run, _ in event.hits if is_shown(run)}
        costs = {run: found for run in sorted(named) if (found := self.costs(run))}
        return [self._document(key, event, named, costs) for key, event in newest]

    def _document(
        self, key: HealthKey, event: schema.Health, named: set[str], costs: dict[str, dict]
    ) -> dict:
        hits = [{"run": run, "rank": rank} for run, rank in event.hits if run in named]
        spent = [(run, found[key]) for run, found in costs.items() if key in found]
        prices = [self._accounts.account(run).gpu_hour_cost() for run, _ in spent]
        dollars = None if not spent or None in prices else sum(
            ns / 3.6e12 * price for (_, ns), price in zip(spent, prices, strict=True)
        )  # fmt: skip
        return {
            "node": key[0],
            "number": event.number,
            "time": event.time_ns / 1e9,
            "kind": event.kind,
            "device": event.device,
            "code": event.code,
            "name": event.name,
            "severity": event.severity,
            "text": event.text,
            "hits": hits,
            "gpu_seconds": sum(ns for _, ns in spent) / 1e9 if spent else None,
            "cost": dollars,
        }

    def counted(self, name: str) -> tuple[Counter, dict[str, int]]:
        """Of a run: events by (kind, severity), and GPU-ns by kind, for series; kinds are few."""
        events, costs = dict(self._log.of_run(name)), self.costs(name)
        spent: Counter = Counter()
        for key, ns in costs.items():
            spent[kind_of(events[key])] += ns
        return Counter((kind_of(event), event.severity) for event in events.values()), dict(spent)
