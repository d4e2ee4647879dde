"""What nodes push to a cluster over a stream, and the accounts that it must make of that, to the nanosecond."""

from __future__ import annotations

import time

from support.account.account_history import ns
from support.aggregator.replicated_cluster import CURRENT_SECONDS_MAX, ReplicatedCluster
from support.aggregator.reports import body_of, story
from support.servers.servers import wait_until

from goodput.account import compute, document
from goodput.aggregator.ingest.store import Store
from goodput.causes import explain

NODES = 2


def plan(*runs: str) -> tuple[list[list[bytes]], dict[str, dict]]:
    """The bodies of each node, in order, and by run the account of them all at once."""
    store, bodies, accounts = Store(), [[] for _ in range(NODES)], {}
    stories = {run: story(run, ranks=2 * NODES) for run in runs}
    for pushes in zip(*stories.values(), strict=True):
        for ranks in pushes:
            for report in ranks:
                store.merge(report, ns(5000))
            for node in range(NODES):
                bodies[node].append(body_of(*ranks[2 * node : 2 * node + 2], node=f"n{node}"))
    for run in runs:
        account = compute(store.runs[run], ns(5000), stale_seconds=30)
        accounts[run] = document(account, explain(account))
        assert accounts[run]["steps"] == {"kept": 16 * NODES * 2, "lost": 4 * NODES * 2}
    return bodies, accounts


def differing(cluster: ReplicatedCluster, accounts: dict[str, dict]) -> list[str]:
    """Runs whose account is not the wanted one, to the nanosecond."""
    found = {run: cluster.document(run) or {} for run in accounts}
    return [run for run, want in accounts.items() if {name: found[run].get(name) for name in want} != want]


def current(cluster: ReplicatedCluster, accounts: dict[str, dict], what: str) -> float:
    """Seconds until the accounts have everything."""
    began = time.monotonic()
    wait_until(lambda: not differing(cluster, accounts), CURRENT_SECONDS_MAX, what)
    return time.monotonic() - began
