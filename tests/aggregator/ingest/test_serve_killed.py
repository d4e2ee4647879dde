"""`goodput serve` killed while agents push, and restarted over the same ledger: nothing is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

import httpx
from support.account.account_history import ns
from support.aggregator.reports import body_of, story
from support.aggregator.serve_command import START_SECONDS_MAX, ServeCommand

from goodput.account import compute, document
from goodput.aggregator.ingest.store import Store
from goodput.causes import explain
from goodput.wire import schema

NODES, KILLS = 4, 3


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
                    answer = client.post("/api/v1/ingest", content=body)
                    ack = schema.decode_ack(answer.content)
                    assert answer.status_code == 200 and not ack.rejected, answer.text
                    self.sent += 1
                    self.acknowledged.release()
        except httpx.TransportError:
            pass  # It was killed.
        except BaseException as error:
            self.error = error


def plan() -> tuple[list[list[bytes]], dict]:
    """The bodies of each node, in order, and the account of them all at once."""
    store, bodies = Store(), [[] for _ in range(NODES)]
    for ranks in story("killed run", ranks=2 * NODES):
        for report in ranks:
            store.merge(report, ns(5000))
        for node in range(NODES):
            bodies[node].append(body_of(*ranks[2 * node : 2 * node + 2]))
    account = compute(store.runs["killed run"], ns(5000), stale_seconds=30)
    return bodies, document(account, explain(account))


def test_a_killed_aggregator_loses_nothing(tmp_path, url):
    chance = random.Random(7)
    bodies, want = plan()
    total = sum(map(len, bodies))
    left, restarts = bodies, []
    for kill in range(KILLS + 1):
        with ServeCommand(tmp_path, url) as served:
            acknowledged = threading.Semaphore(0)
            agents = [Agent(served.url, waiting, acknowledged) for waiting in left]
            if kill < KILLS:
                # In the middle of the pushes: some are stored, some in flight, some not begun.
                for _ in range(total // (KILLS + 2)):
                    assert acknowledged.acquire(timeout=300), [agent.error for agent in agents]
                served.kill()
            for agent in agents:
                agent.join(60)
                assert agent.error is None and not agent.is_alive(), agent.error
            restarts.append(sum(agent.sent for agent in agents))
            # What was not acknowledged is sent again, and now and then something that was.
            left = [
                waiting[max(0, a.sent - chance.randrange(2)) :]
                for waiting, a in zip(left, agents, strict=True)
            ]
            if kill < KILLS:
                assert any(left), "the kill was in the middle"
                continue
            with httpx.Client(base_url=served.url, timeout=60, trust_env=False) as client:
                found = client.get("/api/v1/runs/killed%20run").json()
    assert {name: found[name] for name in want} == want
    assert want["status"] == "finished" and want["steps"] == {"kept": 8 * 16, "lost": 8 * 4}
    assert sum(restarts) >= total
    # And once more over what is on disk alone.
    with (
        ServeCommand(tmp_path, url) as served,
        httpx.Client(base_url=served.url, timeout=60, trust_env=False) as client,
    ):
        again = client.get("/api/v1/runs/killed%20run").json()
    assert {name: again[name] for name in want} == want


def test_serve_refuses_an_unusable_ledger(tmp_path):
    command = [sys.executable, "-m", "goodput", "serve", "--listen", "127.0.0.1:0", "--ledger"]
    for url, words in (("nonsense", "Could not parse"), ("sqlite:////nowhere/at/all.db", "unable to open")):
        done = subprocess.run([*command, url], capture_output=True, text=True, timeout=START_SECONDS_MAX)
        assert done.returncode == 1 and words in done.stderr
        assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
