"""Costs of queries: computing only the shown runs, sharing one scrape, yielding to other requests."""

import asyncio
import gzip
import re
import time
from collections import Counter

import pytest
from support.account.account_history import Process
from support.aggregator.reports import health_event, node_report, rank_report
from support.metrics import client_model

from goodput import causes
from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.accounts import accounts as accounts_module
from goodput.aggregator.accounts import slices
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.run_summaries import PENDING, RunSummaries, summary_of
from goodput.aggregator.api import exposition as exposition_module
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.ingest import ingest as ingest_module
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter
from goodput.slices import result_of
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


def test_page_of_a_large_installation_computes_no_account(accounts, monkeypatch):
    """Else a page of 100 000 ranks takes as long as folding what they pushed since, and pushes wait for it."""
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", RUNS)
    for run in ("r19", "r18"):
        accounts.account(run)
    want = summary_of(accounts.last_of("r19"))
    accounts.store.merge(rank_report(Process(0, 1, 1019.0).steps(3, forward=1), "r19"), 0)
    accounts.calls.clear()
    page = asyncio.run(RunSummaries(accounts).page(3))
    assert [row.run for row in page.runs] == ["r19", "r18", "r17"]
    assert page.runs[0] == want and not accounts.calls
    pending = page.runs[2]
    assert (pending.status, pending.end, pending.world_size) == (PENDING, 1017.0, 1)
    assert (pending.gpu_seconds, pending.goodput, pending.states) == (0.0, None, {})
    accounts.account("r17")
    page = asyncio.run(RunSummaries(accounts).page(RUNS))
    assert page.runs[2] == summary_of(accounts.last_of("r17"))


def test_page_of_a_large_installation_evaluates_no_hang(accounts, monkeypatch):
    """The last verdict stands, since those of all runs are found every other second."""
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", RUNS)
    stuck = Process(0, 1, 2000.0).steps(5, forward=1)
    stuck.phase = "loader"
    stuck.silent(after=100)
    accounts.store.merge(rank_report(stuck, "stuck"), stuck.now_ns)
    accounts.clock_ns, accounts.hangs._began_ns = lambda: stuck.now_ns, 0

    def hangs() -> bool:
        return asyncio.run(RunSummaries(accounts).page(1)).runs[0].hang

    assert accounts.account("stuck").status == "running" and not hangs()
    result_of(accounts.detecting_hangs())
    monkeypatch.setattr(accounts, "hang", None)
    assert hangs()


def test_readers_of_a_large_installation_have_a_share(accounts, monkeypatch):
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", RUNS)
    monkeypatch.setattr(accounts_module, "READERS_TIMES", 1e9)

    def computed(run: str) -> int:
        """Of a run of which something was reported."""
        accounts.store.revisions[run] += 1
        accounts.calls.clear()
        assert asyncio.run(accounts.latest(run)).run == run
        return accounts.calls[run]

    assert (computed("r1"), computed("r2")) == (1, 1), "they have no account yet"
    assert (computed("r1"), computed("r2")) == (0, 0)
    monkeypatch.setattr(accounts, "_readers_wait_until", 0.0)
    monkeypatch.setattr(accounts, "_is_fresh", lambda *_: False)
    assert (computed("r1"), computed("r2")) == (1, 0)
    accounts.always_fresh = True
    assert (computed("r1"), computed("r2")) == (1, 1)
    accounts.always_fresh = False
    monkeypatch.setattr(accounts, "_readers_wait_until", 0.0)
    monkeypatch.setattr(accounts_module, "COSTLY_NS", 0)
    assert computed("r1") == 0


@pytest.mark.parametrize("large", [RUNS, 1 << 40])
def test_health_of_a_large_installation_computes_no_account(accounts, monkeypatch, large):
    """A page asks for it every ten seconds, and each run that an event hit was folded at once."""
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", large)
    log = HealthLog()
    for number, run in enumerate(("r1", "r2"), 1):
        log.add("n0", health_event(number, 1001, 0, run=run), 0, is_scoped=False)
    found = asyncio.run(HealthCosts(log, accounts).all(limit=10)).events
    assert sorted(hit.run for event in found for hit in event.hits) == ["r1", "r2"]
    assert accounts.calls.keys() == (set() if large == RUNS else {"r1", "r2"})


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
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", large)
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
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", 0)
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
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", 0)

    async def computed() -> int:
        before = accounts.calls["r0"]
        await exposition.text()
        await exposition.text()
        return accounts.calls["r0"] - before

    assert asyncio.run(computed()) == 1
    exposition._accounts.always_fresh = True
    assert asyncio.run(computed()) == 2


def test_large_installation_serves_the_last_text(exposition, accounts, monkeypatch):
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", RUNS)
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


@pytest.mark.parametrize(
    ("cpu_seconds", "seconds"), [(0.1, 5.0), (0.4, 8.0), (0.8, 10.0), (3.0, 30.0)]
)  # a twentieth of a core, and up to a tenth where series would be older than ten seconds
def test_refreshes_wait_by_what_they_cost(exposition, cpu_seconds, seconds):
    exposition._cpu_seconds = cpu_seconds
    assert exposition._wait_seconds() == seconds


def test_refreshes_come_before_scrapes_and_seldom_unread(exposition, accounts, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(exposition_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", RUNS)
    assert exposition._due(now) == now + exposition_module.REFRESH_SECONDS, "there are no series yet"
    asyncio.run(exposition.refresh())
    assert exposition._due(now) == now + exposition_module.UNREAD_SECONDS, "nobody reads"

    async def scrape():
        nonlocal now
        for _ in range(3):
            now += 12.0
            await exposition.text()

    asyncio.run(scrape())
    exposition._took_seconds = 1.0
    assert exposition._due(now - 2.0) == now + 10.0
    asyncio.run(accounts.latest("r0"))
    assert exposition._due(now - 2.0) == now + 3.0, "somebody reads the list or a run"
    exposition._cpu_seconds, now = 3.0, now + 1000.0
    assert exposition._due(now) == now + 30.0, "it costs too much"


def test_new_runs_get_accounts_between_refreshes(exposition, accounts, monkeypatch):
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", 0)
    monkeypatch.setattr(exposition_module, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(exposition_module, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(exposition, "_wait_seconds", lambda: 1e6)

    async def scenario():
        fresh = asyncio.ensure_future(exposition.keep_fresh())
        deadline = time.monotonic() + 20
        while exposition._refreshed is None and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        accounts.calls.clear()
        accounts.store.merge(rank_report(Process(0).steps(2, forward=1), "new"), 0)
        while accounts.last_of("new") is None and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        fresh.cancel()

    asyncio.run(scenario())
    assert accounts.last_of("new") is not None and accounts.calls.keys() == {"new"}


def test_runs_that_changed_are_rendered_between_refreshes(exposition, accounts, monkeypatch):
    """Of a large installation all runs would cost too much; the others keep their series."""
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", 0)
    monkeypatch.setattr(exposition_module, "REFRESH_SECONDS", 0)
    now, due = 1000.0, 1010.0
    monkeypatch.setattr(exposition_module.time, "monotonic", lambda: now)
    changed = accounts.store.mixes.changed

    def seconds(text: bytes, run: str) -> float:
        series = rb'^goodput_gpu_seconds\{run="%s",state="productive"\} (\S+)' % run.encode()
        (found,) = re.findall(series, text, re.M)
        return float(found)

    async def rendered() -> bytes:
        accounts.calls.clear()
        await exposition._refresh_changed(due)
        return await exposition.text()

    async def scenario():
        nonlocal now, due
        await exposition.text()
        before = (await exposition.samples()).unix_ns
        for run in ("r3", "r4"):
            begun = accounts.store.runs[run].attempts[0, 1].start_ns / 1e9
            accounts.store.merge(rank_report(Process(0, 1, begun).steps(7, forward=1), run), 0)
        changed["r3"] = changed["gone"] = now
        due = now
        await rendered()
        assert not accounts.calls, "all are due at once"
        due = now + 10
        monkeypatch.setattr(exposition, "_must_wait", lambda: True)
        await exposition._refresh_changed(due)
        assert not accounts.calls, "the next scrape renders all"
        monkeypatch.setattr(exposition, "_must_wait", lambda: False)
        found = await rendered()
        assert (await exposition.samples()).unix_ns > before
        assert (seconds(found, "r3"), seconds(found, "r4")) == (6, 1) and accounts.calls.keys() == {"r3"}
        exposition._changed_due = now + 1
        await rendered()
        assert not accounts.calls, "it was rendered just now"
        now += exposition_module.CHANGED_SECONDS + 1
        await rendered()
        assert not accounts.calls and not changed, "it changed too long ago"
        await exposition.refresh()
        assert seconds(await exposition.text(), "r4") == 6

    asyncio.run(scenario())


def test_small_installation_renders_each_scrape(exposition, accounts):
    async def scrape():
        first, calls = await exposition.text(), accounts.calls["r0"]
        return await exposition.text() is first, accounts.calls["r0"] > calls

    assert asyncio.run(scrape()) == (False, True)


def test_formats_are_rendered_while_requested(exposition, monkeypatch):
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", 0)
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
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", 0)

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
        """Without the aggregator's own series, whose CPU time differs, and without what grows with the clock."""
        return [
            line
            for line in text.decode().splitlines()
            if 'run="' in line and not re.search("_age_|_series_timestamp_|_missing_", line)
        ]

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
        assert [(one.reason, one.run) for one in ack.rejected] == [("malformed", letter * 128)]

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
    assert ingest.counts["rejection", "malformed"] == 9
