"""Health events pushed with a token for some runs: separate bounds, and limits on future times."""

from __future__ import annotations

import asyncio

import pytest
from support.account.account_history import Process, ns
from support.aggregator.ledgers import NOW, aggregator
from support.aggregator.reports import body_of, health_event, rank_report

from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.ingest import health_log as health_module
from goodput.aggregator.ingest.health_log import AHEAD_NS_MAX, HealthLog
from goodput.aggregator.records import SCOPED_OFFSET
from goodput.slices import result_of

TENANT = Access("tenant", ("ingest",), ("a/*",), "0" * 12)


def numbers(log: HealthLog) -> list[tuple]:
    return sorted((node, one.number, key[1] >= SCOPED_OFFSET) for key, one in log.all() for node in [key[0]])


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(health_module, "NODE_WEIGHT_MAX", 40)
    monkeypatch.setattr(health_module, "WEIGHT_MAX", 100)


def test_scoped_events_do_not_displace_fleet_events(small):
    log = HealthLog()
    for number in range(20):
        assert log.add("n0", health_event(number, 1, severity="info"), NOW)
    fleet = numbers(log)
    for number in range(200):
        newest = health_event(number, NOW / 1e9 + 200, 0, severity="critical", run="a/x")
        for node in ("n0", f"other{number}"):
            log.add(node, newest, NOW, is_scoped=True)
    assert [one for one in numbers(log) if not one[2]] == fleet
    scoped = [one for one in numbers(log) if one[2]]
    assert len(scoped) == 5, "a tenth of 100, at two each"
    assert log.used_share() == 1, "of their own bound; of all others' a fifth is used"
    assert sum(node == "n0" for node, _, _ in scoped) <= 2
    assert len(log) == 25 == len(log.all()) and len(log.of_run("a/x")) == 5 and log.has_hit("a/x")
    assert all(key in log for key, _ in log.all()) and ("n0", 999) not in log


def test_fleet_events_do_not_displace_scoped_events(small):
    log = HealthLog()
    assert log.add("n0", health_event(1, 1, 0, severity="info", run="a/x"), NOW, is_scoped=True)
    for number in range(100):
        log.add("n0", health_event(number, 5, severity="critical"), NOW)
    assert ("n0", 1, True) in numbers(log) and sum(not one[2] for one in numbers(log)) == 40


def test_scoped_numbers_do_not_shadow_node_numbers(small):
    log = HealthLog()
    assert log.add("n0", health_event(7, 5, 0, run="a/x"), NOW, is_scoped=True)
    assert log.add("n0", health_event(7, 5, severity="critical"), NOW)
    assert numbers(log) == [("n0", 7, False), ("n0", 7, True)]


def test_future_events_are_bounded_and_count_as_now(monkeypatch):
    monkeypatch.setattr(health_module, "NODE_WEIGHT_MAX", 2)
    log = HealthLog()
    assert ns(600) >= AHEAD_NS_MAX
    assert not log.add("n0", health_event(1, (NOW + AHEAD_NS_MAX) / 1e9 + 1), NOW)
    assert log.counts["dropped", "time"] == 1
    assert log.add("n0", health_event(2, (NOW + AHEAD_NS_MAX) / 1e9), NOW)
    # They arrive after it, but before the time that it claims.
    for number, seconds in ((3, 10), (4, 20)):
        assert log.add("n0", health_event(number, NOW / 1e9 + seconds), NOW + ns(seconds))
    assert [number for _, number, _ in numbers(log)] == [3, 4]


def test_scope_of_events_survives_a_restart(ledger, monkeypatch):
    monkeypatch.setattr(health_module, "NODE_WEIGHT_MAX", 40)
    ingest = aggregator(ledger)

    def push(access, *events) -> None:
        report = rank_report(Process().steps(2, forward=1), "a/x")
        asyncio.run(ingest.accept(body_of(report, node="n0", health=list(events)), access))

    push(EVERYTHING, *(health_event(number, 1, severity="info") for number in range(5)))
    push(TENANT, *(health_event(number, 900, 0, severity="critical", run="a/x") for number in range(30)))
    push(TENANT, health_event(99, 900), health_event(98, 900, 0, run="b/x"))
    assert ingest.health.counts["dropped", "scope"] == 2
    want = numbers(ingest.health)
    assert [one for one in want if not one[2]] == [("n0", number, False) for number in range(5)]
    assert sum(one[2] for one in want) == 2
    for per_node in (5, 2):
        found = [one.number for _, one in ledger.health(per_node)]
        assert sum(number < SCOPED_OFFSET for number in found) == per_node, (
            "none is kept out by those of a tenant"
        )
    assert numbers(aggregator(ledger).health) == want


def test_readers_see_the_agents_event_number(ledger):
    ingest = aggregator(ledger)
    ingest.health.add("n0", health_event(7, 5, 0, run="a/x"), NOW, is_scoped=True)
    finding = HealthCosts(ingest.health, None)._finding(ingest.health.all(), lambda _: False, limit=9)
    (shown,) = result_of(finding)
    assert (shown.node, shown.number) == ("n0", 7)
