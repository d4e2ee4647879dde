"""Times in reports are bounded on both sides, so that no rank adds years to its run and to what all runs add up to."""

from __future__ import annotations

import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.account.account_history import Process, ns
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_command import ServeCommand

from goodput import cli
from goodput.access import token_file
from goodput.access.tokens import make
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.wire import schema

DAY = 86_400.0
NOW = 20_000 * DAY


def store(days: float = 7) -> Store:
    return Store(start_age_ns_max=ns(days * DAY))


def merge(into: Store, began: float, rank: int = 0, now: float = NOW, run: str = "r") -> None:
    one = Process(rank, 1, began, world_size=8).steps(1, forward=1)
    into.merge(rank_report(one, run), ns(now))


def test_token_for_some_runs_cannot_move_the_cluster(tmp_path):
    """Such a rank added 1.8e9 GPU-seconds to the cluster. It is refused, counted, and its pusher told why."""
    week = cli.parser().parse_args(["serve"]).oldest_start
    assert week == 7
    bearers = {}
    with token_file.changing(str(tmp_path / "tokens.json")) as tokens:
        for scope, runs in (("ingest", "team-a/*"), ("read", "*")):
            text, token = make(scope, scope, runs=(runs,), gpus=4 if scope == "ingest" else None)
            tokens.append(token)
            bearers[scope] = {"Authorization": f"Bearer {text}"}
    started = time.time() - 60
    right = rank_report(Process(0, 1, started, world_size=1).steps(20, forward=1), "team-a/right")
    old = rank_report(Process(0, 1, 5, world_size=1).steps(20, forward=1), "team-a/old")
    large = rank_report(Process(0, 1, started, world_size=262_144).steps(20, forward=1), "team-a/large")
    options = ("--tokens", str(tmp_path / "tokens.json"), "--oldest-start", str(week))
    with ServeCommand(tmp_path, f"sqlite:///{tmp_path}/ledger.db", *options) as serve:
        client = httpx.Client(base_url=serve.url, timeout=60, trust_env=False)
        answer = client.post("/api/v1/ingest", content=body_of(right, old, large), headers=bearers["ingest"])
        text = client.get("/metrics", headers=bearers["read"]).text
    found = schema.decode_ack(answer.content)
    assert answer.status_code == 200 and found.accepted == 1
    told = {one.run: (one.reason, one.text) for one in found.rejected}
    assert {run: reason for run, (reason, _) in told.items()} == {
        "team-a/old": "time",
        "team-a/large": "ranks",
    }
    assert "days ago" in told["team-a/old"][1] and "--oldest-start" in told["team-a/old"][1]
    assert "at most 4 are allowed" in told["team-a/large"][1]
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    total = sum(one.value for one in samples if one.name == "goodput_gpu_seconds")
    assert 20 <= total < 3600, "GPU-seconds of all runs"
    (refused,) = [
        one.value
        for one in samples
        if one.name == "goodput_aggregator_rank_rejections_total" and one.labels["reason"] == "time"
    ]
    assert refused == 1


def test_process_may_begin_a_week_ago():
    one = store()
    merge(one, NOW - 6.9 * DAY)
    with pytest.raises(ReportRejected, match=r"began 7\.1 days ago, at most 7 are accepted") as refused:
        merge(one, NOW - 7.1 * DAY, rank=1)
    assert refused.value.reason == "time" and len(one.processes) == 1


def test_known_process_reports_for_years():
    """Only a process that is not known has to be new; a training may go on for as long as it takes."""
    one = store()
    merge(one, NOW - DAY)
    merge(one, NOW - DAY, now=NOW + 400 * DAY)
    assert len(one.processes) == 1


def test_late_rank_of_an_old_run_is_accepted():
    """An agent that comes back after weeks has ranks that began with the others, but none that began before them."""
    one = store()
    merge(one, NOW - DAY)
    merge(one, NOW - DAY, rank=1, now=NOW + 30 * DAY)
    with pytest.raises(ReportRejected):
        merge(one, NOW - 2 * DAY, rank=2, now=NOW + 30 * DAY)


def test_bound_does_not_creep():
    """Each process that is a little older than the one before would walk back to 1970."""
    one = store()
    merge(one, NOW - 6 * DAY)
    for days in (8, 9, 13):
        with pytest.raises(ReportRejected):
            merge(one, NOW - days * DAY, rank=1)
    assert one.starts["r"] == ns(NOW - 6 * DAY)


def test_restored_process_is_not_bounded():
    """What the ledger has was accepted before."""
    one = store()
    began = Process(0, 1, NOW - 100 * DAY, world_size=8).steps(1, forward=1)
    one.merge(rank_report(began, "r"), 0)
    merge(one, NOW - 99 * DAY, rank=1)
    assert len(one.processes) == 2
