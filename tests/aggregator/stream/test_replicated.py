"""Several aggregators over one stream, as real processes: reads reach the owner, and no fault of one process loses anything."""

from __future__ import annotations

import re
import signal
import time

import httpx
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from support.account.account_history import ns
from support.aggregator.replicated_cluster import CURRENT_SECONDS_MAX, PushingNode, ReplicatedCluster
from support.aggregator.replicated_plan import NODES, current, plan
from support.aggregator.reports import Process, body_of, rank_report
from support.integration.stack_under_faults import record
from support.servers.servers import wait_until

from goodput.metrics import CATALOGUE
from goodput.wire import schema


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, postgresql):
    with ReplicatedCluster(tmp_path_factory.mktemp("replicated"), postgresql, stream_bytes="2MiB") as found:
        yield found


def test_any_aggregator_answers_about_all_runs(cluster):
    runs = [f"read-{number}" for number in range(6)]
    bodies, accounts = plan(*runs)
    for node in [PushingNode(cluster.urls("ingest"), one) for one in bodies]:
        node.finish()
    current(cluster, accounts, "the accounts")
    answers = {
        name: {run: cluster.document(run, name) for run in runs} for name in ("aggregate-0", "aggregate-1")
    }
    assert answers["aggregate-0"] == answers["aggregate-1"]
    for name in answers:
        page = cluster.get(name, "/api/v1/runs", params={"q": "read-", "limit": 4}).json()
        assert [row["run"] for row in page["runs"]] == runs[:4]
        assert (page["total"], page["truncated"]) == (6, True)
        rest = cluster.get(name, "/api/v1/runs", params={"q": "read-", "limit": 4, "offset": 4}).json()
        assert [row["run"] for row in rest["runs"]] == runs[4:] and not rest["truncated"]
        window = {"start": 1010, "end": 1020}
        account = cluster.get(name, "/api/v1/runs/read-0/account", params=window).json()
        assert account["gpu_seconds"] == 10 * accounts["read-0"]["world_size"] * 2
        assert cluster.get(name, "/api/v1/runs/read-0/timeline") and cluster.get(name, "/api/v1/health")
        ended = httpx.post(f"{cluster.url(name)}/api/v1/runs/read-1/end", json={"reason": "cancelled"})
        assert ended.json()["known"] + ended.json()["already"] == 2 * NODES, ended.text
        unknown = httpx.get(f"{cluster.url(name)}/api/v1/runs/none")
        assert (unknown.status_code, unknown.json()["detail"]) == (404, "no run 'none'")


def test_stream_that_is_full_of_what_the_ledger_has(cluster):
    """It is kept for ten minutes where there is room; a stream of 2 MiB takes any number of pushes."""
    report = rank_report(Process(0, world_size=1).steps(1, forward=1), "full")
    marks = [schema.EventRow(number, "mark", ns(1), 0, "x" * 200) for number in range(1, 201)]
    bodies = [body_of(replace(report, sequence=ns(1) + at, events=marks)) for at in range(100)]
    assert sum(map(len, bodies)) > 2 * (2 << 20)
    node = PushingNode(cluster.urls("ingest"), bodies)
    node.finish()


def test_series_of_the_stream_are_declared(cluster):
    """All of them are shown, by a worker or an aggregator, and readable by Prometheus' parser."""
    wanted = {name for name in CATALOGUE if re.match(r"goodput_aggregator_(stream_|partition)", name)}
    found = set()
    for name in ("ingest-0", "aggregate-0"):
        families = text_string_to_metric_families(cluster.get(name, "/metrics").text)
        found |= {sample.name for family in families for sample in family.samples}
    assert found & wanted == wanted
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in found - CATALOGUE.keys()}
    assert families <= CATALOGUE.keys() | {"goodput_aggregator_request_seconds"}


def test_roles_that_take_no_pushes_say_so(cluster):
    answer = httpx.post(f"{cluster.url('aggregate-0')}/api/v1/ingest", content=b"")
    assert answer.status_code == 503 and "--role ingest" in answer.text
    answer = httpx.post(f"{cluster.url('ingest-0')}/api/v1/ingest", content=b"\xc1")
    assert answer.status_code == 400


@pytest.mark.faults
def test_any_process_killed_loses_nothing(cluster, postgresql):
    """A worker, an aggregator, the stream's leader and PostgreSQL are killed while nodes push, and started again."""
    runs = [f"killed-{number}" for number in range(4)]
    bodies, accounts = plan(*runs)
    nodes = [PushingNode(cluster.urls("ingest"), one, every_seconds=0.15) for one in bodies]

    def under(fault: str, end, begin) -> None:
        sent = sum(node.sent for node in nodes)
        end()
        wait_until(
            lambda: sum(node.sent for node in nodes) > sent or not any(map(PushingNode.is_alive, nodes)),
            60,
            "pushes",
        )
        began = time.monotonic()
        wait_until(lambda: not cluster.unserved(), CURRENT_SECONDS_MAX, f"partitions after: {fault}")
        record(fault, time.monotonic() - began)
        begin()

    under("SIGKILL of an ingest worker", lambda: cluster.kill("ingest-0"), lambda: cluster.start("ingest-0"))
    under(
        "SIGKILL of one of two aggregators over a stream",
        lambda: cluster.kill("aggregate-0"),
        lambda: cluster.start("aggregate-0"),
    )
    leader = cluster.nats.leader("GOODPUT_PUSHES")
    under(
        "SIGKILL of the stream's leader",
        lambda: cluster.nats.kill(leader),
        lambda: cluster.nats.start(leader),
    )
    cluster.wait("aggregate-0")  # one that starts while there is no database ends, and would be started again
    postgresql.stop(signal.SIGKILL)
    time.sleep(1.0)  # longer than a transaction: some fail
    postgresql.start()
    for node in nodes:
        node.finish()
    record("SIGKILL of PostgreSQL under two aggregators", current(cluster, accounts, "the accounts"))
    assert sum(node.failed for node in nodes), "something failed, and was pushed again"


def delay_seconds(cluster: ReplicatedCluster) -> float:
    """Of the aggregator that is latest."""
    series = [cluster.series(name) for name in ("aggregate-0", "aggregate-1")]
    return max(one.get("goodput_aggregator_stream_delay_seconds", 0.0) for one in series)


@pytest.mark.slow_faults
def test_frozen_worker_leader_and_database_lose_nothing(cluster, postgresql):
    """Each is stopped until pushes fail for it or go another way; seconds are those from when it goes on, or is replaced."""
    bodies, accounts = plan(*[f"stopped-{number}" for number in range(4)])
    halves = [[one[: len(one) // 2] for one in bodies], [one[len(one) // 2 :] for one in bodies]]
    more, more_accounts = plan(*[f"led-{number}" for number in range(4)])

    def nodes(bodies: list[list[bytes]]) -> list[PushingNode]:
        return [PushingNode(cluster.urls("ingest"), one) for one in bodies]

    # Nodes wait 10 s for the worker's answer, and push to the other one.
    cluster.freeze("ingest-0")
    try:
        began, pushing = time.monotonic(), nodes(halves[0])
        for node in pushing:
            node.finish()
        record("SIGSTOP of an ingest worker, until all is pushed to the other", time.monotonic() - began)
        assert all(node.failed for node in pushing)
    finally:
        cluster.thaw("ingest-0")
    with postgresql.frozen():
        for node in nodes(halves[1]):  # into the stream
            node.finish()
        wait_until(lambda: delay_seconds(cluster) > 2, CURRENT_SECONDS_MAX, "pushes to wait for the ledger")
    record("SIGSTOP of PostgreSQL under two aggregators", current(cluster, accounts, "the accounts"))
    leader = cluster.nats.leader("GOODPUT_PUSHES")
    cluster.nats.freeze(leader)
    try:
        began = time.monotonic()
        for node in nodes(more):
            node.finish()
        current(cluster, more_accounts, "the accounts without that server")
        record("SIGSTOP of the stream's leader, until all is pushed and current", time.monotonic() - began)
    finally:
        cluster.nats.thaw(leader)
    current(cluster, accounts | more_accounts, "the accounts, once that server is back")


@pytest.mark.slow_faults
def test_aggregator_frozen_beyond_its_lease_writes_nothing_late(cluster):
    """The other one takes its partitions; when it goes on it is fenced, forgets them, and is given some back."""
    runs = [f"frozen-{number}" for number in range(4)]
    bodies, accounts = plan(*runs)
    half = [len(one) // 2 for one in bodies]
    wait_until(lambda: min(map(cluster.served, ("aggregate-0", "aggregate-1"))) > 0, 60, "both to serve some")
    nodes = [
        PushingNode(cluster.urls("ingest"), one[:at], every_seconds=0.02)
        for one, at in zip(bodies, half, strict=True)
    ]
    wait_until(lambda: min(node.sent for node in nodes) > 3, 60, "some pushes")
    cluster.freeze("aggregate-1")
    try:
        began = time.monotonic()
        wait_until(lambda: cluster.served("aggregate-0") == 8, 60, "the other one to serve all")
        record("SIGSTOP of one of two aggregators over a stream", time.monotonic() - began)
        for node in nodes:
            node.finish()
    finally:
        cluster.thaw("aggregate-1")
    rest = [PushingNode(cluster.urls("ingest"), one[at:]) for one, at in zip(bodies, half, strict=True)]
    for node in rest:
        node.finish()
    current(cluster, accounts, "the accounts")
    wait_until(lambda: cluster.served("aggregate-1") > 0, 60, "partitions to be given back")
    assert "another aggregator has its lease" in cluster.log(
        "aggregate-1"
    ) or "another aggregator writes" in cluster.log("aggregate-1")
    current(cluster, accounts, "the accounts, where they are now")


@pytest.mark.slow_faults
def test_stop_gives_partitions_away_at_once(cluster):
    """On SIGTERM, as in a rolling upgrade: no lease has to expire."""
    cluster.kill("aggregate-1", signal.SIGTERM)
    began = time.monotonic()
    wait_until(lambda: not cluster.unserved(), 60, "the other one to serve all")
    record("an aggregator over a stream is stopped for an upgrade", time.monotonic() - began)
    cluster.start("aggregate-1")
    cluster.wait("aggregate-1")
    wait_until(lambda: cluster.served("aggregate-1") > 0, 60, "it to be given some")
