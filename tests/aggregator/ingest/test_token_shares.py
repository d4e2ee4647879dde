"""A token for some runs takes a share of the store's bounds; the others' runs have the rest."""

import pytest
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report

from goodput.aggregator.ingest import store as store_module
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.aggregator.ingest.token_gpus import TokenGpus

NOW = ns(2000)


def merge(store: Store, run: str, token: str, rank: int = 0, attempt: int = 1, **given) -> None:
    one = Process(rank, attempt, 1000).steps(1, forward=1)
    store.merge(rank_report(one, run, **given), NOW, token)


@pytest.mark.parametrize("bound, reason", [("RUNS_MAX", "runs"), ("PROCESSES_MAX", "ranks")])
def test_runs_and_processes_have_shares(monkeypatch, bound, reason):
    monkeypatch.setattr(store_module, bound, 12)
    store = Store()
    for number in range(3):
        merge(store, f"a/{number}", "scoped")
        merge(store, f"a/{number}", "scoped")
    with pytest.raises(ReportRejected, match="share of 3") as refused:
        merge(store, "a/3", "scoped")
    assert refused.value.reason == reason and "a/3" not in store.runs
    for number in range(9):
        merge(store, f"b/{number}", "")
    store.forget("a/0")
    merge(store, "a/3", "scoped")
    assert sum(store.taken_sum.values()) == 6, "three runs and processes"


@pytest.mark.parametrize("bound", ["ATTEMPTS_MAX", "WORLDS_MAX"])
def test_restarts_of_one_run_are_bounded(monkeypatch, bound):
    """An account takes time for each restart and world size of a run: one run must not take all of it."""
    monkeypatch.setattr(store_module, bound, 3)
    store = Store()
    for number in (1, 2, 3):
        merge(store, "r", "", attempt=number, world_size=number)
    with pytest.raises(ReportRejected) as refused:
        merge(store, "r", "", attempt=4, world_size=4)
    assert refused.value.reason == "ranks" and len(store.processes) == 3
    merge(store, "r", "", attempt=3, world_size=3)
    merge(store, "other", "", attempt=4, world_size=4)
    store.forget("r")
    merge(store, "r", "", attempt=4, world_size=4)


def test_restarts_under_one_number_are_numbered():
    store = Store()
    for pid in range(1, 100):
        one = Process(0, 1, 1000).steps(1, forward=1).finished()
        store.merge(rank_report(one, "r", pid=pid), NOW)
    assert sorted(store.runs["r"].attempts) == [(0, number) for number in range(1, 100)]


def reporting(gpus_max: int) -> Store:
    return Store(token_gpus=TokenGpus({"scoped": gpus_max}.get))


def push(store: Store, run: str, at: float, token: str = "scoped", attempt: int = 1, **given) -> None:
    one = Process(0, attempt, 1000).steps(1, forward=1)
    store.merge(rank_report(one, run, **given), ns(at), token)


def test_gpus_of_a_token_are_bounded():
    """The world that a rank claims counts as allocated, whether or not its other ranks ever report."""
    store = reporting(16)
    push(store, "a/1", 2000, world_size=4, devices=2)
    push(store, "a/2", 2000, world_size=8)
    with pytest.raises(ReportRejected, match="at most 16 are") as refused:
        push(store, "a/3", 2000, world_size=1)
    assert refused.value.reason == "ranks" and "a/3" not in store.runs
    with pytest.raises(ReportRejected):
        push(store, "a/1", 2000, attempt=2, world_size=262_144)
    push(store, "b/1", 2000, token="other", world_size=262_144)
    push(store, "c/1", 2000, token="", world_size=262_144)


def test_runs_that_report_no_more_leave_their_gpus():
    store = reporting(8)
    push(store, "a/1", 2000, world_size=8)
    for at in (2060, 2120, 2180):
        push(store, "a/1", at, world_size=8)
        with pytest.raises(ReportRejected):
            push(store, "a/2", at, world_size=8)
    push(store, "a/2", 2301, world_size=8)
    with pytest.raises(ReportRejected):
        push(store, "a/1", 2302, world_size=8)


def test_run_that_shrinks_leaves_gpus():
    """Reports of its attempt before, which may still come, take none back."""
    store = reporting(8)
    push(store, "a/1", 2000, world_size=8)
    push(store, "a/1", 2001, attempt=2, world_size=4)
    push(store, "a/2", 2002, world_size=4)
    push(store, "a/2", 2003, world_size=4)
    with pytest.raises(ReportRejected):
        push(store, "a/1", 2004, attempt=1, world_size=8)
    push(store, "a/1", 2005, attempt=2, world_size=4)
    with pytest.raises(ReportRejected):
        push(store, "a/1", 2006, attempt=2, world_size=5)
