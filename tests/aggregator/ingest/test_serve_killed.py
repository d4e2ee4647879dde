"""`goodput serve` killed while agents push, and restarted over the same ledger: nothing is lost.

`make kills` does so some hundred times.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time

import httpx
import pytest
from support.account.account_history import ns
from support.aggregator.reports import body_of, story
from support.aggregator.serve_command import START_SECONDS_MAX, ServeCommand
from support.servers.servers import wait_until

from goodput.account import compute, document
from goodput.aggregator.ingest.store import Store
from goodput.causes import explain
from goodput.wire import schema

NODES = 4
ACCOUNT_SECONDS_MAX = 10.0
KILLS = int(os.environ.get("GOODPUT_TEST_KILLS", "3"))


class Agent(threading.Thread):
    """Pushes one node's bodies in order until one is not acknowledged; `sent` counts those that were."""

    def __init__(self, url: str, bodies: list[bytes], acknowledged: threading.Semaphore):
        super().__init__(daemon=True)
        self.url, self.bodies, self.acknowledged, self.sent = url, bodies, acknowledged, 0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self.url, timeout=60, trust_env=False) as client:
                for body in self.bodies:
                    # It answers 503 until it has read its ledger.
                    answer = wait_until(
                        lambda body=body: accepted(client, body), START_SECONDS_MAX, "an answer"
                    )
                    ack = schema.decode_ack(answer.content)
                    assert answer.status_code == 200 and not ack.rejected, answer.text
                    self.sent += 1
                    self.acknowledged.release()
        except httpx.TransportError:
            pass  # It was killed.
        except BaseException as error:
            self.error = error


def accepted(client: httpx.Client, body: bytes) -> httpx.Response | None:
    answer = client.post("/api/v1/ingest", content=body)
    return None if answer.status_code == 503 else answer


def plan() -> tuple[list[list[bytes]], dict[str, dict]]:
    """The bodies of each node, in order, and by run the account of them all at once."""
    store, bodies, accounts = Store(), [[] for _ in range(NODES)], {}
    for run in (f"killed run {number}" for number in range(1 + KILLS // 4)):
        for ranks in story(run, ranks=2 * NODES):
            for report in ranks:
                store.merge(report, ns(5000))
            for node in range(NODES):
                bodies[node].append(body_of(*ranks[2 * node : 2 * node + 2]))
        account = compute(store.runs[run], ns(5000), stale_seconds=30)
        accounts[run] = document(account, explain(account))
        assert accounts[run]["status"] == "finished" and accounts[run]["steps"] == {
            "kept": 8 * 16,
            "lost": 8 * 4,
        }
    return bodies, accounts


def differing(url: str, accounts: dict[str, dict]) -> list[str]:
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        found = {run: client.get(f"/api/v1/runs/{run}").json() for run in accounts}
    return [run for run, want in accounts.items() if {name: found[run].get(name) for name in want} != want]


@pytest.mark.faults
def test_a_killed_aggregator_loses_nothing(tmp_path, url):
    chance = random.Random(7)
    bodies, accounts = plan()
    total, sent, left = sum(map(len, bodies)), 0, bodies
    for _ in range(KILLS):
        with ServeCommand(tmp_path, url) as served:
            acknowledged = threading.Semaphore(0)
            agents = [Agent(served.url, waiting, acknowledged) for waiting in left]
            # In the middle of the pushes: some are stored, some in flight, some not begun.
            for _ in range(chance.randint(1, total // (KILLS + 2))):
                assert acknowledged.acquire(timeout=300), [agent.error for agent in agents]
            time.sleep(chance.uniform(0, 0.02))
            served.kill()
            sent += joined(agents)
        # What was not acknowledged is sent again, and now and then something that was.
        left = [
            waiting[max(0, agent.sent - chance.randrange(2)) :]
            for waiting, agent in zip(left, agents, strict=True)
        ]
        assert any(left), "the kill was in the middle"
    with ServeCommand(tmp_path, url) as served:
        sent += joined([Agent(served.url, waiting, threading.Semaphore(0)) for waiting in left])
        assert_become(served.url, accounts)
    assert sent >= total
    # And once more over what is on disk alone.
    with ServeCommand(tmp_path, url) as served:
        assert_become(served.url, accounts)


def assert_become(url: str, accounts: dict[str, dict]) -> None:
    """An account stands for ten times as long as it took to compute, so that it may be one of some pushes before."""
    wait_until(lambda: not differing(url, accounts), ACCOUNT_SECONDS_MAX, "the accounts of all pushes")


def joined(agents: list[Agent]) -> int:
    """Wait for the end of agents; the number of bodies that were acknowledged."""
    for agent in agents:
        agent.join(300)
        assert agent.error is None and not agent.is_alive(), agent.error
    return sum(agent.sent for agent in agents)


def test_serve_refuses_an_unusable_ledger(tmp_path):
    command = [
        sys.executable,
        "-m",
        "goodput",
        "serve",
        "--oldest-start",
        "36500",
        "--listen",
        "127.0.0.1:0",
        "--ledger",
    ]
    for url, words in (("nonsense", "Could not parse"), ("sqlite:////nowhere/at/all.db", "unable to open")):
        done = subprocess.run([*command, url], capture_output=True, text=True, timeout=START_SECONDS_MAX)
        assert done.returncode == 1 and words in done.stderr
        assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
