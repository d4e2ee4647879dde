"""Sampled stacks in the aggregator: merged in any order, kept over a restart, bounded, and in the API's account."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.aggregator.shapes import assert_shape

from goodput.account import compute, document
from goodput.aggregator.accounts.accounts import Accounts, RunDocument
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest import sampled_ranks
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.ledger import Ledger
from goodput.causes import explain
from goodput.runlog import replay
from goodput.runlog.export import export
from goodput.wire import schema

NOW = ns(100)
BATCH = "data.py:next_batch, line 41"


def report_with(
    count: int, rank: int = 0, attempt: int = 1, seconds: float = 8, **given
) -> schema.RankReport:
    """A report with so many samples; none with 0."""
    one = Process(rank, attempt, start=20 * attempt, world_size=4).steps(4, none=1, forward=seconds / 4 - 1)
    report = rank_report(one, **given)
    stacks = schema.SampledStacks({BATCH: count}, count) if count else None
    return replace(report, live=replace(report.live, stacks=stacks))


def samples_of(store: Store) -> dict | None:
    account = compute(store.runs["r1"], NOW)
    return document(account)["stack_samples"]


def test_newest_report_of_a_rank_counts():
    """The counts are cumulative, so a late report changes nothing; one without any keeps them."""
    store = Store()
    for count, seconds in ((10, 8), (50, 12), (20, 10), (0, 16)):
        store.merge(report_with(count, seconds=seconds), NOW)
    found = samples_of(store)
    assert found is not None and found["samples"] == 50
    assert found["ranks"][0]["places"] == [{"place": BATCH, "samples": 50, "share": 1.0}]


def test_later_attempt_replaces_earlier_one():
    store = Store()
    for count, attempt in ((50, 1), (7, 2)):
        store.merge(report_with(count, attempt=attempt), NOW)
    assert [one.stacks.samples for one in store.runs["r1"].attempts.values()] == [0, 7]


def test_number_of_ranks_is_bounded(monkeypatch):
    store = Store()
    monkeypatch.setattr(sampled_ranks, "RANKS_MAX", 2)
    monkeypatch.setattr(sampled_ranks, "RANKS_IN_ALL_MAX", 3)
    for run in ("r1", "r2"):
        for rank in range(3):
            store.merge(report_with(5, rank=rank, run=run), NOW)
            store.merge(report_with(6, rank=rank, run=run, seconds=12), NOW)
    kept = [one.stacks.samples for run in store.runs.values() for one in run.attempts.values()]
    assert kept == [6, 6, 0, 6, 0, 0]
    assert store.sampled.dropped == 2 + 4 and store.sampled.used_share() == 1


@pytest.mark.parametrize(
    "stacks",
    [
        schema.SampledStacks({f"f, line {i}": 1 for i in range(17)}, 17),
        schema.SampledStacks({"f" * 161: 1}, 1),
        schema.SampledStacks({"f\n": 1}, 1),
        schema.SampledStacks({"f": 2}, 1),
        schema.SampledStacks({"f": -1}, 1),
        schema.SampledStacks({}, 1 << 62),
        schema.SampledStacks({}, 0, "why" * 60),
    ],
)
def test_invalid_samples_are_left_out(stacks):
    """They are refused, and the rest of the rank's report is used."""
    report = report_with(0)
    report = replace(report, live=replace(report.live, stacks=stacks))
    with pytest.raises(schema.SchemaError, match=r"stacks|samples"):
        schema.check(report)
    usable = schema.without_wrong_options(report)
    schema.check(usable)
    assert usable.live.stacks is None and usable.steps == report.steps


def test_api_history_restart_and_replay_agree(tmp_path, monkeypatch):
    """Every way to the account of a run has its samples, and its advice names the function."""
    monkeypatch.setattr(Accounts, "_is_fresh", lambda *_: False)
    url = f"sqlite:///{tmp_path}/ledger.db"
    start = time.time() - 60
    one = Process(0, 1, start=start).steps(20, none=1, forward=1)
    report = rank_report(one)
    stacks = schema.SampledStacks({BATCH: 46, "train.py:<module>, line 9": 4}, 50)
    with serving(create_app(url)) as client:
        push(client, replace(report, live=replace(report.live, stacks=stacks)))
        push(client, rank_report(one.steps(2, none=1, forward=1)))
        live = client.get("/api/v1/runs/r1").json()
        assert_shape(live, RunDocument)
        part = client.get("/api/v1/runs/r1/account", params={"start": start, "end": start + 30}).json()
        reported = client.get("/metrics").text
    with serving(create_app(url)) as again:
        restarted = again.get("/api/v1/runs/r1").json()
    (tmp_path / "run.jsonl").write_bytes(b"".join(export(Ledger(url), "r1", time.time_ns())))
    (replayed,) = replay(str(tmp_path / "run.jsonl"))
    replayed = document(replayed.account, explain(replayed.account))
    assert live["stack_samples"]["places"][0] == {"place": BATCH, "samples": 46, "share": 0.92}
    for found in (live, part, restarted, replayed):
        assert found["stack_samples"] == live["stack_samples"]
        (cause,) = [cause for cause in found["causes"] if cause["state"] == "unattributed"]
        assert f"92 % in {BATCH}" in cause["advice"]
    assert "goodput_aggregator_stack_samples_dropped_total 0" in reported
