"""Ingest workers and aggregators over a cluster of NATS servers and PostgreSQL, as real processes that faults are injected into.

with ReplicatedCluster(tmp_path, postgresql, nats_servers=3) as cluster:
    node = PushingNode(cluster.urls("ingest"), bodies)
    cluster.kill("aggregate-0")
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
from support.servers import servers
from support.servers.nats_server import NatsCluster
from support.servers.postgresql_server import PostgreSQL

from goodput.child_processes import Child
from goodput.wire import schema

START_SECONDS_MAX, CURRENT_SECONDS_MAX = 60, 60
PARTITIONS = 8


class Program(NamedTuple):
    """A version of goodput: its command, and what it needs in its environment."""

    command: tuple[str, ...] = (sys.executable, "-m", "goodput")
    environ: Mapping[str, str] = {}


CURRENT = Program()


class ReplicatedCluster:
    """All ends with the `with`. Processes are named `ingest-0`, `aggregate-1`; each keeps its address when it is started again."""

    def __init__(
        self,
        folder: Path,
        database: PostgreSQL,
        nats_servers: int = 3,
        workers: int = 2,
        aggregators: int = 2,
        stream_bytes: str = "256MiB",
        program: Program = CURRENT,
    ):
        self.folder, self._stream_bytes = folder, stream_bytes
        self.ledger_url = database.create_database()
        self.nats = NatsCluster(folder, nats_servers)
        self._replicas = min(nats_servers, 3)
        names = [f"ingest-{at}" for at in range(workers)] + [f"aggregate-{at}" for at in range(aggregators)]
        self.ports = dict(zip(names, servers.free_ports(len(names)), strict=True))
        self.programs = dict.fromkeys(names, program)
        self.children: dict[str, Child] = {}
        self._starts = itertools.count(1)

    def __enter__(self) -> ReplicatedCluster:
        self.nats.__enter__()
        try:
            for name in self.ports:
                self.start(name)
            for name in self.ports:
                self.wait(name)
            servers.wait_until(lambda: not self.unserved(), START_SECONDS_MAX, "all partitions to be served")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for name in list(self.children):
            self.kill(name)
        self.nats.__exit__()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def urls(self, role: str) -> list[str]:
        return [self.url(name) for name in self.ports if name.startswith(role)]

    # ---- Processes

    def start(self, name: str) -> None:
        role = name.partition("-")[0]
        program = self.programs[name]
        command = [*program.command, "serve", "--listen", f"127.0.0.1:{self.ports[name]}"]
        command += ["--oldest-start", "36500"]  # runs of tests may begin in 1970
        command += ["--role", role, "--stream", ",".join(self.nats.urls), "--partitions", str(PARTITIONS)]
        command += ["--stream-bytes", self._stream_bytes, "--stream-replicas", str(self._replicas)]
        command += ["--ledger", self.ledger_url] if role == "aggregate" else []
        self.children[name] = Child(f"{name}.{next(self._starts)}", command, self.folder, program.environ)

    def wait(self, name: str) -> None:
        """Until a process is ready."""
        self.children[name].address(START_SECONDS_MAX)
        servers.wait_until(
            lambda: self.get(name, "/readyz") is not None, START_SECONDS_MAX, f"{name} to be ready"
        )

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        child = self.children.pop(name)
        child.process.send_signal(signal.SIGCONT)
        child.process.send_signal(how)
        child.process.wait(60)

    def replace(self, name: str, program: Program) -> None:
        """Stop a process in order and start it again as another version of the program, until it is ready."""
        self.kill(name, signal.SIGTERM)
        self.programs[name] = program
        self.start(name)
        self.wait(name)

    def freeze(self, name: str) -> None:
        self.children[name].process.send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.children[name].process.send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        return self.children[name].log.read_text()

    # ---- What they say

    def get(self, name: str, path: str, **given) -> httpx.Response | None:
        """The answer of a process; None where it does not answer 200."""
        try:
            answer = httpx.get(self.url(name) + path, trust_env=False, timeout=10, **given)
        except httpx.TransportError:
            return None
        return answer if answer.status_code == 200 else None

    def series(self, name: str) -> dict[str, float]:
        """A process's own series without labels."""
        answer = self.get(name, "/metrics")
        lines = [] if answer is None else answer.text.splitlines()
        pairs = [line.split() for line in lines if line.startswith("goodput_aggregator") and "{" not in line]
        return {series: float(value) for series, value in pairs}

    def served(self, name: str) -> int:
        """How many partitions an aggregator serves."""
        return int(self.series(name).get("goodput_aggregator_partitions", 0))

    def unserved(self) -> int:
        """Partitions that no aggregator serves."""
        running = [name for name in self.children if name.startswith("aggregate")]
        return PARTITIONS - sum(map(self.served, running))

    def document(self, run: str, name: str | None = None) -> dict | None:
        """The account of a run, as one aggregator or the first that knows it answers."""
        for of in [name] if name else [one for one in self.children if one.startswith("aggregate")]:
            answer = self.get(of, f"/api/v1/runs/{run}")
            if answer is not None:
                return answer.json()
        return None


class PushingNode(threading.Thread):
    """Pushes bodies in order to the first of several workers that takes them, each until it is acknowledged."""

    def __init__(self, urls: list[str], bodies: list[bytes], every_seconds: float = 0.0):
        super().__init__(daemon=True)
        self.urls, self.bodies, self.every_seconds = urls, bodies, every_seconds
        self.sent = self.failed = 0
        self.rejected: list[schema.Rejection] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            urls = itertools.cycle(self.urls)
            with httpx.Client(timeout=10, trust_env=False) as client:
                url = next(urls)
                for body in self.bodies:
                    deadline = time.monotonic() + 120
                    while (answer := self._answer(client, url, body)) is None:
                        assert time.monotonic() < deadline, "no worker takes pushes"
                        self.failed += 1
                        url = next(urls)
                        time.sleep(0.2)
                    self.rejected += schema.decode_ack(answer.content).rejected
                    self.sent += 1
                    time.sleep(self.every_seconds)
        except BaseException as error:
            self.error = error

    def _answer(self, client: httpx.Client, url: str, body: bytes) -> httpx.Response | None:
        try:
            answer = client.post(f"{url}/api/v1/ingest", content=body)
        except httpx.TransportError:
            return None
        assert answer.status_code in (200, 503), answer.text
        return answer if answer.status_code == 200 else None

    def finish(self, seconds: float = 180) -> None:
        self.join(seconds)
        assert self.error is None and not self.is_alive(), self.error
        assert self.sent == len(self.bodies) and not self.rejected
