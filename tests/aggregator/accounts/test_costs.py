"""Costs of queries: computing only the shown runs, sharing one scrape, yielding to other requests."""

import asyncio
import gzip
import re
from collections import Counter

import pytest
from support.account.account_history import Process
from support.aggregator.reports import node_report, rank_report
from support.metrics import client_model

from goodput import causes
from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.accounts import accounts as accounts_module
from goodput.aggregator.accounts import slices
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
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter
from goodput.wire import schema

RUNS = 20


class Counted(Accounts):
    """Accounts that count their calls by run."""

    def __init__(self, store: Store):
        super().__init__(store, history=History(None), stall_seconds=60.0, stale_seconds=30.0)
        self.calls: Counter = Counter()

    def computing(self, name, now_ns=None):
        self.calls[name] += 1
        return super().computing(name, now_ns)


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


def test_page_shows_last_accounts_where_costly(accounts, monkeypatch):
    """Else a page of 30 000 ranks takes as long as folding what they pushed since."""
    asyncio.run(RunSummaries(accounts).page(3))
    monkeypatch.setattr(accounts_module, "COSTLY_NS", 1)
    monkeypatch.setattr(accounts_module, "RECENT_TIMES", 10**9)
    accounts.store.merge(rank_report(Process(0, 1, 1019.0).steps(3, forward=1), "r19"), 0)
    accounts.calls.clear()
    page = asyncio.run(RunSummaries(accounts).page(4))
    assert [row.run for row in page.runs] == ["r19", "r18", "r17", "r16"]
    assert page.runs[0].end == accounts.last_of("r19").end_ns / 1e9
    assert accounts.calls.keys() == {"r16"}, "which has none yet"


def test_other_requests_run_between_rows(accounts, monkeypatch):
    monkeypatch.setattr(slices, "AT_A_TIME_SECONDS", 0.0)
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


@pytest.mark.parametrize("large", [0, 1 << 40])
def test_text_is_per_token_scope_and_run(exposition, monkeypatch, large):
    monkeypatch.setattr(exposition_module, "LARGE_RANKS", large)
    some = [Access(name, ("read",), (run,)) for name, run in (("a", "r1"), ("b", "r2"))]

    async def scrape():
        texts = await asyncio.gather(*(exposition.text(access) for access in (*some, EVERYTHING, *some)))
        requests = [(EVERYTHING, ("r3", "r4", "r3", "unknown")), (some[0], ("r2",)), (some[0], ("r1", "r2"))]
        return texts, [await exposition.text(*one) for one in requests]

    texts, of_runs = asyncio.run(scrape())
    shown = [{i for i in range(RUNS) if f'run="r{i}"'.encode() in text} for text in (*texts, *of_runs)]
    assert shown == [{1}, {2}, set(range(RUNS)), {1}, {2}, {3, 4}, set(), {1}]
    own = [b"goodput_aggregator_runs" in text for text in (*texts, *of_runs)]
    assert own == [False, False, True, False, False, False, False, False]
    assert all(b"goodput_aggregator_series_timestamp_seconds" in text for text in (*texts, *of_runs))


def test_a_format_is_new_while_the_text_is_refreshed(exposition, monkeypatch):
    """The refresh that is under way has begun without it."""
    monkeypatch.setattr(exposition_module, "LARGE_RANKS", 0)
    monkeypatch.setattr(exposition_module, "REFRESH_SECONDS", 0)

    async def scrape():
        await exposition.samples()
        refresh = asyncio.ensure_future(exposition.keep_fresh())
        while "refresh" not in exposition._flights.tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "refresh" in exposition._flights.tasks
        text = await exposition.text(EVERYTHING)
        refresh.cancel()
        return text

    assert b"goodput_run_info" in asyncio.run(scrape())


def test_simulated_clocks_get_each_scrape_rendered(exposition, accounts, monkeypatch):
    monkeypatch.setattr(exposition_module, "LARGE_RANKS", 0)

    async def computed() -> int:
        before = accounts.calls["r0"]
        await exposition.text()
        await exposition.text()
        return accounts.calls["r0"] - before

    assert asyncio.run(computed()) == 1
    exposition.always_fresh = True
    assert asyncio.run(computed()) == 2


def test_large_installation_serves_the_last_text(exposition, accounts, monkeypatch):
    monkeypatch.setattr(exposition_module, "LARGE_RANKS", RUNS)
    now = 0.0
    monkeypatch.setattr(exposition_module.time, "monotonic", lambda: now)

    async def scrape():
        nonlocal now
        first, packed = await exposition.text(), await exposition.text(compressed=True)
        assert gzip.decompress(packed) == first and await exposition.text() is first
        calls = accounts.calls["r0"]
        now += exposition_module.AGE_SECONDS_MAX - 1
        assert await exposition.text() is first and accounts.calls["r0"] == calls
        await exposition.refresh()
        later = await exposition.text()
        assert later is not first and accounts.calls["r0"] > calls
        now += exposition_module.AGE_SECONDS_MAX + 1
        assert await exposition.text() is not later, "nothing refreshed it for too long"

    asyncio.run(scrape())


def test_small_installation_renders_each_scrape(exposition, accounts):
    async def scrape():
        first, calls = await exposition.text(), accounts.calls["r0"]
        return await exposition.text() is first, accounts.calls["r0"] > calls

    assert asyncio.run(scrape()) == (False, True)


def test_formats_are_rendered_while_requested(exposition, monkeypatch):
    monkeypatch.setattr(exposition_module, "LARGE_RANKS", 0)
    now = 0.0
    monkeypatch.setattr(exposition_module.time, "monotonic", lambda: now)

    async def refreshed(later: float) -> list:
        nonlocal now
        now += later
        await exposition.refresh()
        return sorted(exposition._always, key=lambda format: format.__name__)

    async def scrape():
        await exposition.text()
        assert await refreshed(1) == [TextWriter]
        await exposition.text(format=ProtobufWriter)
        assert await refreshed(1) == [ProtobufWriter, TextWriter]
        assert {key.format for key in exposition._texts} == {ProtobufWriter, TextWriter}
        await exposition.text(format=ProtobufWriter)
        assert await refreshed(exposition_module.FORMAT_SECONDS) == [ProtobufWriter]
        assert {key.format for key in exposition._texts} == {ProtobufWriter}
        assert await refreshed(exposition_module.FORMAT_SECONDS) == [TextWriter]
        assert b"goodput_aggregator_info" in await exposition.text(format=ProtobufWriter)

    asyncio.run(scrape())


def test_compressed_protobuf_is_the_same(exposition, monkeypatch):
    monkeypatch.setattr(exposition_module, "LARGE_RANKS", 0)

    async def scrape():
        packed = await exposition.text(compressed=True, format=ProtobufWriter)
        return packed, await exposition.text(format=ProtobufWriter)

    packed, body = asyncio.run(scrape())
    assert gzip.decompress(packed) == body and client_model.values(body)


def test_unchanged_account_is_not_rendered_again(exposition, monkeypatch):
    drawn = []
    monkeypatch.setattr(exposition._accounts, "_is_fresh", lambda *_: True)
    monkeypatch.setattr(exposition._accounts.store, "runs", {"r0": exposition._accounts.store.runs["r0"]})
    add = exposition._series.add_account
    monkeypatch.setattr(exposition._series, "add_account", lambda *of: drawn.append(of) or add(*of))

    async def scrape():
        return [await exposition.text() for _ in range(3)]

    first, *others = asyncio.run(scrape())
    assert len(drawn) == 1
    for text in (first, *others):
        assert b'goodput_gpu_seconds{run="r0",state="productive"}' in text
        assert b'goodput_progress_age_seconds{run="r0"}' in text


def test_text_equals_the_families(exposition, monkeypatch):
    # However long the first takes, both show the same accounts.
    monkeypatch.setattr(exposition._accounts, "_is_fresh", lambda *_: True)

    def of_runs(text: bytes) -> list[str]:
        """Without the aggregator's own series, whose CPU time and text age differ each time."""
        return [line for line in text.decode().splitlines() if 'run="' in line and "_age_" not in line]

    text = asyncio.run(exposition.text())
    families = exposition.families(EVERYTHING)
    assert sorted(of_runs(text)) == sorted(of_runs(TextWriter().write([families]))) != []
    counts = dict(re.findall(r'goodput_aggregator_series\{level="(\w+)"\} (\d+)', text.decode()))
    assert {level: int(count) for level, count in counts.items() if level != "self"} == {
        level: count for level, count in families.count_by_level().items() if level != "self"
    }


@pytest.mark.parametrize("format", [TextWriter, ProtobufWriter])
def test_other_requests_run_between_runs(exposition, monkeypatch, format):
    monkeypatch.setattr(slices, "AT_A_TIME_SECONDS", -1.0)
    text, yields = result_and_yields(exposition.text(EVERYTHING, format=format))
    assert all(b"r%d" % i in text for i in range(RUNS)) and yields >= RUNS


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
