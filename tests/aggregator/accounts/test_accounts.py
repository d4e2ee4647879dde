"""When a cached account is recomputed."""

import asyncio
import threading

import pytest
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report, story

from goodput.aggregator.accounts import accounts as accounts_module
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.ingest.store import Store

NOW = ns(2000)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def accounts(store):
    return Accounts(store, history=History(None), stall_seconds=60, stale_seconds=30, age_seconds=0.5)


def test_running_account_is_recomputed_with_age(store, accounts):
    store.merge(rank_report(Process(start=1990).steps(3, forward=1)), NOW)
    first = accounts.account("r1", NOW)
    assert accounts.account("r1", NOW + ns(0.4)) is first
    later = accounts.account("r1", NOW + ns(60))
    assert (later.end_ns, later.status) == (NOW + ns(60), "unobserved")


def test_clock_set_back_invalidates_the_cache(store, accounts):
    store.merge(rank_report(Process(start=1000).steps(3, forward=1)), NOW)
    first = accounts.account("r1", NOW)
    assert accounts.account("r1", NOW - ns(600)) is not first


def test_finished_account_is_cached_until_a_report(store, accounts):
    pushes = story()
    for report in (report for push in pushes for report in push):
        store.merge(report, NOW)
    first = accounts.account("r1", NOW)
    assert accounts.account("r1", NOW + ns(86400)) is first
    again = Process(0, 3, 1100, world_size=2).step(forward=1)
    store.merge(rank_report(again), NOW + ns(86400))
    assert accounts.account("r1", NOW + ns(86400)).status == "running"


def test_unknown_run_is_a_key_error(accounts):
    for call in (accounts.account, lambda run: asyncio.run(accounts.document(run))):
        with pytest.raises(KeyError):
            call("r1")


def test_document_is_made_beside_the_event_loop(store, accounts, monkeypatch):
    """Of ten thousand ranks it takes a second, for which pushes would wait."""
    store.merge(rank_report(Process(0, 1, 1000).step(forward=1)), NOW)
    made, threads = accounts_module.document, []
    monkeypatch.setattr(
        accounts_module,
        "document",
        lambda *given: threads.append(threading.current_thread()) or made(*given),
    )
    found = asyncio.run(accounts.document("r1"))
    assert [live.rank for live in found["live"]] == [0] and len(found["ranks"]) == 1
    assert len(threads) == 1 and threads[0] is not threading.main_thread()
