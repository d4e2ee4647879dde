"""Workers and aggregators of two versions at once, as real processes: upgraded in the wrong order, and back again."""

from __future__ import annotations

import sys
import time

import pytest
from support.aggregator.later_goodput import HEAD, NEXT
from support.aggregator.replicated_cluster import CURRENT, PARTITIONS, Program, PushingNode, ReplicatedCluster
from support.aggregator.replicated_plan import current, plan
from support.integration.stack_under_faults import record
from support.paths import SUPPORT
from support.servers.servers import wait_until

SECONDS_MAX = 90
PENDING = "goodput_aggregator_stream_pending_messages"


@pytest.fixture
def cluster(tmp_path, postgresql):
    with ReplicatedCluster(tmp_path, postgresql, nats_servers=1) as found:
        yield found


@pytest.fixture
def later(tmp_path):
    """A later version in which this has changed: messages, ledger."""

    def program(changed: str) -> Program:
        return Program(
            (sys.executable, str(SUPPORT / "aggregator" / "later_goodput.py"), changed, str(tmp_path))
        )

    return program


def served(cluster: ReplicatedCluster, fault: str, *names: str) -> None:
    """Wait until these alone serve all partitions."""
    began = time.monotonic()
    wait_until(
        lambda: sum(map(cluster.served, names)) == PARTITIONS, SECONDS_MAX, f"{names} to serve all: {fault}"
    )
    record(fault, time.monotonic() - began)


@pytest.mark.slow_faults
def test_messages_of_two_versions(cluster, later):
    """Workers first, which the older aggregators cannot read: nothing is served until one of them is upgraded, or lost."""
    runs = [f"rolled-{number}" for number in range(6)]
    bodies, accounts = plan(*runs)

    def pushed(part: int) -> None:
        """A third of all pushes."""
        parts = [one[part * len(one) // 3 : (part + 1) * len(one) // 3] for one in bodies]
        for node in [PushingNode(cluster.urls("ingest"), one) for one in parts]:
            node.finish()

    pushed(0)
    for name in ("ingest-0", "ingest-1"):
        cluster.replace(name, later("messages"))
    pushed(1)
    older = ("aggregate-0", "aggregate-1")
    wait_until(lambda: any("update it" in cluster.log(name) for name in older), SECONDS_MAX, "a refusal")
    cluster.replace("aggregate-0", later("messages"))
    served(cluster, "one of two aggregators is upgraded after the workers", "aggregate-0")
    # Back: the older one goes on to read nothing of the later version, and all of the older one.
    for name in ("ingest-0", "ingest-1"):
        cluster.replace(name, CURRENT)
    wait_until(lambda: cluster.series("aggregate-0")[PENDING] == 0, SECONDS_MAX, "nothing to be pending")
    cluster.replace("aggregate-0", CURRENT)
    pushed(2)
    current(cluster, accounts, "the accounts after up- and downgrade")
    served(cluster, "both aggregators are downgraded after the workers", *older)


@pytest.mark.slow_faults
def test_ledgers_of_two_versions(cluster, later):
    """The first upgraded aggregator migrates the ledger; the other one writes nothing more, and says why."""
    runs = [f"migrated-{number}" for number in range(6)]
    bodies, accounts = plan(*runs)
    nodes = [PushingNode(cluster.urls("ingest"), one, every_seconds=0.2) for one in bodies]
    wait_until(lambda: min(node.sent for node in nodes) > 3, 60, "some pushes")
    cluster.replace("aggregate-0", later("ledger"))
    served(cluster, "the ledger is migrated by one of two aggregators", "aggregate-0")
    assert cluster.served("aggregate-1") == 0
    logged = f"has version {NEXT}, this program knows up to {HEAD}; this aggregator gives its partitions away"
    assert logged in cluster.log("aggregate-1")
    for node in nodes:
        node.finish()
    current(cluster, accounts, "the accounts")
    cluster.replace("aggregate-1", later("ledger"))
    wait_until(lambda: cluster.served("aggregate-1") > 0, SECONDS_MAX, "it to be given some")
    current(cluster, accounts, "the accounts, where they are now")
