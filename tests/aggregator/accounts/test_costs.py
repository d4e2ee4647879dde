"""Costs of queries: computing only the shown runs, sharing one scrape, yielding to other requests."""

import asyncio
from collections import Counter

import pytest
from support.account.account_history import Process
from support.aggregator.reports import node_report, rank_report

from goodput import causes
from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.accounts import run_summaries as summaries_module
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.run_summaries import RunSummaries
from goodput.aggregator.api import exposition as exposition_module
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.ingest import ingest as ingest_module
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.wire import schema

RUNS = 20


class Counted(Accounts):
    """Accounts that count their calls by run."""

    def __init__(self, store: Store):
        super().__init__(store, history=History(""), stall_seconds=60.0, stale_seconds=30.0)
        self.calls: Counter = Counter()

    def account(self, name, now_ns=None):
        self.calls[name] += 1
        return super().account(name, now_ns)


@pytest.fixture
def accounts():
    """Of runs r0, r1, ... whose later ones began later."""
    store = Store()
    for i in range(RUNS):
        store.merge(rank_report(Process(0, 1, 1000.0 + i).steps(2, forward=1), f"r{i}"), 0)
    return Counted(store)


@pytest.fixture
def exposition(accounts):
    health = HealthLog()
    return Exposition(
        accounts,
        Ingest(accounts.store, None, health=health),
        HealthCosts(health, accounts),
        RequestAuthenticator(),
    )


def result_and_yields(awaitable) -> tuple[object, int]:
    """The result, and how often the event loop ran other tasks before it."""

    async def wait():
        task, yields = asyncio.ensure_future(awaitable), 0
        while not task.done():
            await asyncio.sleep(0)
            yields += 1
        return task.result(), yields

    return asyncio.run(wait())


# ---- The list


def test_page_computes_only_the_shown_runs(accounts):
    page = asyncio.run(RunSummaries(accounts).page(3, 2))
    assert [row.run for row in page.runs] == ["r17", "r16", "r15"]
    assert (page.total, page.truncated) == (RUNS, True)
    assert accounts.calls.keys() == {"r17", "r16", "r15"}


def test_other_requests_run_between_rows(accounts, monkeypatch):
    monkeypatch.setattr(summaries_module, "AT_A_TIME_SECONDS", 0.0)
    page, yields = result_and_yields(RunSummaries(accounts).page(RUNS))
    assert len(page.runs) == RUNS and yields >= RUNS


# ---- The series


def test_concurrent_scrapes_share_one_text(exposition, accounts):
    async def scrape():
        return await asyncio.gather(*(exposition.text(EVERYTHING) for _ in range(5)))

    one, *others = asyncio.run(scrape())
    assert b'goodput_run_info{device="",run="r0"' in one and all(text is one for text in others)
    assert accounts.calls["r0"] < 5


def test_cancelled_scrape_does_not_cancel_others(exposition):
    async def scrape():
        first, second = (asyncio.ensure_future(exposition.text(EVERYTHING)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert b"goodput_run_info" in asyncio.run(scrape())


def test_cached_text_is_per_token_scope(exposition, monkeypatch):
    monkeypatch.setattr(exposition_module, "COSTLY_RANKS", 0)
    some = [Access(name, ("read",), (run,)) for name, run in (("a", "r1"), ("b", "r2"))]

    async def scrape():
        return await asyncio.gather(*(exposition.text(access) for access in (*some, EVERYTHING, *some)))

    texts = asyncio.run(scrape())
    shown = [{i for i in range(RUNS) if f'run="r{i}"'.encode() in text} for text in texts]
    assert shown == [{1}, {2}, set(range(RUNS)), {1}, {2}]
    assert [b"goodput_aggregator_runs" in text for text in texts] == [False, False, True, False, False]


def test_costly_text_is_cached_for_a_second(exposition, monkeypatch):
    now = 0.0
    monkeypatch.setattr(exposition_module.time, "monotonic", lambda: now)

    async def scrape(costly: int):
        nonlocal now
        monkeypatch.setattr(exposition_module, "COSTLY_RANKS", costly)
        first = await exposition.text(EVERYTHING)
        now += 0.9
        again = await exposition.text(EVERYTHING)
        now += 0.2
        return again is first, await exposition.text(EVERYTHING) is first

    assert asyncio.run(scrape(RUNS)) == (True, False)
    now += 10
    assert asyncio.run(scrape(RUNS + 1)) == (False, False)
    now += 10
    asyncio.run(exposition.text(EVERYTHING))
    assert not exposition._cache._cached and not exposition._cache._flights.tasks, (
        "nothing is kept for longer"
    )


def test_other_requests_run_between_runs(exposition, monkeypatch):
    monkeypatch.setattr(exposition_module, "AT_A_TIME_SECONDS", -1.0)
    text, yields = result_and_yields(exposition.text(EVERYTHING))
    assert text.count(b"goodput_run_info{") == RUNS and yields >= RUNS


def test_causes_are_listed_once():
    assert causes.advisers() is causes.advisers()


# ---- Refusals


def test_rejected_run_names_are_truncated(caplog, monkeypatch):
    monkeypatch.setattr(ingest_module, "LOGGED_PER_HOUR_MAX", 3)
    ingest, now = Ingest(Store(), None), 0.0
    monkeypatch.setattr(ingest_module.time, "monotonic", lambda: now)
    ingest._logged_since = now
    nothing = Access("one", ("ingest",), ("other/*",))

    def refuse(letter: str) -> None:
        report = rank_report(Process().steps(1, forward=1), letter * 10_000)
        ack = asyncio.run(ingest.accept(schema.encode(node_report(report)), nothing))
        assert [(one.reason, one.run) for one in ack.rejected] == [("scope", letter * 128)]

    for letter in "abcdeab":
        refuse(letter)
    assert len(caplog.records) == len(ingest._logged) == 3
    assert all(len(run) == 128 for run, *_ in ingest._logged)
    now = 3599.0
    refuse("e")
    assert len(caplog.records) == 3
    now = 3601.0
    refuse("e")
    assert len(caplog.records) == 4 and "eeee" in caplog.records[-1].message
    assert ingest.counts["rejection", "scope"] == 9
