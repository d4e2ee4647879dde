"""Simulated ranks push to a cluster over a stream while one process after another is killed; nothing may be lost.

    PYTHONPATH=tests python -m bench.aggregator.scale_faults [--ranks N] [--minutes M] [--every SECONDS] [--json]

Three NATS servers, two ingest workers and two aggregators; every so many seconds one of these seven is killed, each in turn in
an order from the seed, and started again five seconds later. Nodes of 8 ranks push as agents do: each keeps a push until it is
acknowledged, and tries another worker after an error. At the end the account of every run is compared, as a document, with
that of a single aggregator which got the same pushes without faults. Meanwhile the accounts of four runs are read from a
running aggregator, each every two seconds; the age of an answer is the time since the first acknowledged push whose samples
it does not count, and without an answer that of the run's last one. (States and kept steps go to the moment until which
every rank has reported, so they are older by up to a round without any fault.)
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import httpx
from msgspec.structs import replace
from support.aggregator.replicated_cluster import ReplicatedCluster
from support.aggregator.serve_command import ServeCommand
from support.servers import servers
from support.servers.postgresql_server import PostgreSQL

from bench.aggregator import load
from bench.aggregator.load import ROUND_SECONDS, SAMPLES, STEPS, Maker, Plan
from goodput.wire import schema

RANKS_OF_NODE, RANKS_OF_RUN = 8, 256
WATCHED = 4  # runs whose age is followed
READ_SECONDS = 1.5
PUSHERS = 8
# Fields of an account that depend on the moment when it is read.
PRESENT = ("clocks",)
OLD_SECONDS = 15.0
DOWN_SECONDS, TIMEOUT_SECONDS, RETRY_SECONDS = 5.0, 10.0, 0.5


class Pushes:
    """The pushes of all nodes, made from the seed's plan: the same for the cluster and for the single aggregator."""

    def __init__(self, ranks: int, rounds: int, start_ns: int):
        self.nodes, self.rounds = ranks // RANKS_OF_NODE, rounds
        self._maker = Maker(Plan("http://none", "", self.nodes, RANKS_OF_NODE, rounds), start_ns)
        self._start_ns = start_ns

    def body(self, node: int, number: int) -> bytes:
        """The push of a node in round `number`; in the last one its ranks have finished."""
        now_ns = self._start_ns + int((number + 1) * ROUND_SECONDS * 1e9)
        ranks = [
            self._maker._rank(rank, number * STEPS, (number + 1) * STEPS, now_ns)
            for rank in range(node * RANKS_OF_NODE, (node + 1) * RANKS_OF_NODE)
        ]
        if number == self.rounds - 1:
            ranks = [
                replace(one, live=replace(one.live, ended="finished", alive=False, end_ns=now_ns))
                for one in ranks
            ]
        return schema.encode(schema.NodeReport(f"n{node}", now_ns, ranks))

    def run_of(self, node: int) -> str:
        return f"bench-{node * RANKS_OF_NODE // RANKS_OF_RUN}"

    def runs(self) -> list[str]:
        return sorted({self.run_of(node) for node in range(self.nodes)})


@dataclass
class Acknowledged:
    """When the pushes of each run were acknowledged: (time, samples until then)."""

    times: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, run: str) -> None:
        with self.lock:
            before = self.times[run][-1][1] if self.times[run] else 0
            self.times[run].append((time.monotonic(), before + SAMPLES * STEPS * RANKS_OF_NODE))

    def age(self, run: str, samples: int) -> float:
        """How long ago the first push was acknowledged that an account with so many samples lacks."""
        with self.lock:
            lacking = next((at for at, until in self.times[run] if until > samples), None)
        return 0.0 if lacking is None else time.monotonic() - lacking


class Pusher(threading.Thread):
    """Pushes of some nodes, each at its moment of every round, until it is acknowledged."""

    def __init__(
        self, pushes: Pushes, nodes: range, urls: list[str], began: float, acknowledged: Acknowledged
    ):
        super().__init__(daemon=True)
        self._pushes, self._urls, self._acknowledged = (
            pushes,
            [urlsplit(url).netloc for url in urls],
            acknowledged,
        )
        chance = random.Random(nodes.start)
        # (due, node, round)
        self._due = [(began + chance.uniform(0, ROUND_SECONDS), node, 0) for node in nodes]
        heapq.heapify(self._due)
        self._connections: dict[str, HTTPConnection] = {}
        self._since: dict[int, float] = {}  # when pushes that failed were due
        self.failed = self.rejected = 0
        self.late_seconds = 0.0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while self._due:
                due, node, number = heapq.heappop(self._due)
                time.sleep(max(0.0, due - time.monotonic()))
                if not self._push(node, number):
                    self.failed += 1
                    self._since.setdefault(node, due)
                    heapq.heappush(self._due, (time.monotonic() + RETRY_SECONDS, node, number))
                    continue
                due = self._since.pop(node, due)
                self.late_seconds = max(self.late_seconds, time.monotonic() - due)
                self._acknowledged.add(self._pushes.run_of(node))
                if number + 1 < self._pushes.rounds:
                    heapq.heappush(self._due, (max(due + ROUND_SECONDS, time.monotonic()), node, number + 1))
        except BaseException as error:
            self.error = error

    def _push(self, node: int, number: int) -> bool:
        url = self._urls[(node + self.failed) % len(self._urls)]
        connection = self._connections.get(url) or HTTPConnection(url, timeout=TIMEOUT_SECONDS)
        self._connections[url] = connection
        try:
            headers = {"Content-Type": schema.CONTENT_TYPE}
            connection.request("POST", "/api/v1/ingest", self._pushes.body(node, number), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, HTTPException):
            connection.close()
            return False
        if answer.status != 200:
            return False
        self.rejected += len(schema.decode_ack(body).rejected)
        return True


class Reader(threading.Thread):
    """Reads a run again and again from whichever aggregator answers; how old the figures are that it has."""

    def __init__(self, cluster: ReplicatedCluster, run: str, acknowledged: Acknowledged):
        super().__init__(daemon=True)
        self._cluster, self._run, self._acknowledged = cluster, run, acknowledged
        self.ages: list[tuple[float, float]] = []  # (when, age)
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        began, samples = time.monotonic(), 0  # of the last answer
        while not self._ended.wait(READ_SECONDS):
            found = self._document()
            if found:
                samples = found["samples"]
            self.ages.append((time.monotonic() - began, self._acknowledged.age(self._run, samples)))

    def _document(self) -> dict | None:
        try:
            return self._cluster.document(self._run)
        except (httpx.HTTPError, RuntimeError, KeyError):
            return None  # It was killed meanwhile.

    def end(self) -> None:
        self._ended.set()
        self.join()


def killed(cluster: ReplicatedCluster, seconds: float, every: float, seed: int) -> list[str]:
    """Kill a process every so often for so long; the names of those that were."""
    chance, names = random.Random(seed), []
    processes = [*cluster.ports, *(f"nats-{at}" for at in range(len(cluster.nats.processes)))]
    end, left = time.monotonic() + seconds, []
    while time.monotonic() + every < end:
        left = left or chance.sample(processes, len(processes))
        name = left.pop()
        names.append(name)
        at = time.monotonic()
        if name.startswith("nats"):
            cluster.nats.kill(int(name[-1]))
        else:
            cluster.kill(name)
        time.sleep(DOWN_SECONDS)
        if name.startswith("nats"):
            cluster.nats.start(int(name[-1]))
        else:
            cluster.start(name)
        print(f"  {at - (end - seconds):5.0f} s  killed {name}", file=sys.stderr, flush=True)
        time.sleep(max(0.0, at + every - time.monotonic()))
    return names


def without_faults(folder: Path, pushes: Pushes) -> dict[str, dict]:
    """The accounts of a single aggregator with the same pushes."""
    with ServeCommand(folder, f"sqlite:///{folder}/single.db") as served:
        connection = HTTPConnection(urlsplit(served.url).netloc, timeout=120)
        for number in range(pushes.rounds):
            for node in range(pushes.nodes):
                connection.request("POST", "/api/v1/ingest", pushes.body(node, number))
                answer = connection.getresponse()
                assert (answer.status, answer.read()) and answer.status == 200
        with httpx.Client(base_url=served.url, trust_env=False, timeout=120) as client:
            return {run: client.get(f"/api/v1/runs/{run}").json() for run in pushes.runs()}


def differences(wanted: dict[str, dict], found: dict[str, dict]) -> list[str]:
    """Runs whose account differs; what only describes the present moment is left out."""
    return [run for run in wanted if _lasting(wanted[run]) != _lasting(found[run] or {})]


def _lasting(document: dict) -> dict:
    """Without the gains of causes, which are of a replay of the steps that were the newest at the time
    of the request, or of none where there are many requests."""
    found = {name: value for name, value in document.items() if name not in PRESENT}
    for cause in (causes := [dict(one) for one in found.get("causes", [])]):
        for name in ("gain", "gain_low", "gain_high", "gain_basis"):
            cause.pop(name, None)
    return {**found, "causes": causes}


def _first_difference(wanted: dict, found: dict) -> str:
    """What differs first, for a person."""
    for name, value in _lasting(wanted).items():
        if found.get(name) != value:
            if name == "ranks" and name in found:
                pairs = zip(value, found[name], strict=False)
                return next((f"{one} != {other}" for one, other in pairs if one != other), "number of ranks")
            return f"{name}: {str(value)[:200]} != {str(found.get(name))[:200]}"
    return "something that it should not have"


def measured(given: argparse.Namespace, folder: Path) -> dict:
    load.RANKS_PER_RUN = RANKS_OF_RUN
    rounds = max(3, int(60 * given.minutes / ROUND_SECONDS))
    with PostgreSQL() as database, ReplicatedCluster(folder, database, stream_bytes="512MiB") as cluster:
        start_ns = time.time_ns() - int(ROUND_SECONDS * 1e9)
        pushes, acknowledged, began = Pushes(given.ranks, rounds, start_ns), Acknowledged(), time.monotonic()
        pushers = [
            Pusher(pushes, range(at, pushes.nodes, PUSHERS), cluster.urls("ingest"), began, acknowledged)
            for at in range(PUSHERS)
        ]
        runs = pushes.runs()
        watched = runs[:: max(1, len(runs) // WATCHED)][:WATCHED]
        readers = [Reader(cluster, run, acknowledged) for run in watched]
        names = killed(cluster, rounds * ROUND_SECONDS, given.every, given.seed)
        for pusher in pushers:
            pusher.join(600)
        for reader in readers:
            reader.end()
        assert all(not one.is_alive() and one.error is None for one in pushers), [
            one.error for one in pushers
        ]
        wanted = without_faults(folder, pushes)
        print("  compared with a single aggregator", file=sys.stderr, flush=True)

        def left() -> list[str]:
            return differences(wanted, {run: cluster.document(run) for run in wanted})

        began = time.monotonic()
        try:
            servers.wait_until(lambda: not left(), 120, "the same accounts", every_seconds=2.0)
        except AssertionError:
            pass
        unequal = {}
        for run in left():
            found = cluster.document(run) or {}
            unequal[run] = _first_difference(wanted[run], found)
            (folder / f"{run}.json").write_text(json.dumps({"wanted": wanted[run], "found": found}))
    read = sorted(one for reader in readers for one in reader.ages)
    ages = [age for _, age in read]
    return {
        "ranks": given.ranks,
        "runs": len(wanted),
        "rank_steps": sum(sum(rank["steps"]["kept"] for rank in one["ranks"]) for one in wanted.values()),
        "killed": {name: names.count(name) for name in sorted(set(names))},
        "kills": len(names),
        "pushes": pushes.nodes * rounds,
        "failed_tries": sum(one.failed for one in pushers),
        "rejected": sum(one.rejected for one in pushers),
        "latest_push_seconds": round(max(one.late_seconds for one in pushers), 1),
        "age_seconds": {"median": round(median(ages), 1), "max": round(max(ages), 1)},
        "old_at": {round(at): round(age, 1) for at, age in read if age > OLD_SECONDS},
        "accounts_that_differ": unequal,
        "seconds_until_equal": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill one process after another of a cluster over a stream.")
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="goodput-scale-"))
    found = measured(given, folder)
    if found["accounts_that_differ"]:
        print(f"logs: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24}{value}")
    return 1 if found["accounts_that_differ"] or found["rejected"] else 0


if __name__ == "__main__":
    sys.exit(main())
