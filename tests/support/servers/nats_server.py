"""Real NATS servers with JetStream for the tests, one or a cluster of several on loopback, each with a folder of its own.

They can be killed, frozen, thawed and started again; what was started is ended by process id.

    with NatsCluster(tmp_path, 3) as cluster:
        cluster.urls          # nats://127.0.0.1:..., one for each server
        cluster.kill(cluster.leader())
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from pathlib import Path

import nats
from support.servers import servers

READY_SECONDS_MAX = 60


class NatsCluster:
    def __init__(self, folder: Path, count: int = 1, file_bytes: int = 1 << 30):
        servers.require("nats-server")
        self._folder, self._count, self._file_bytes = folder, count, file_bytes
        ports = servers.free_ports(2 * count)
        self._ports, self._routes = ports[:count], ports[count:]
        self.processes: list[subprocess.Popen | None] = [None] * count

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self._ports]

    def __enter__(self) -> NatsCluster:
        for at in range(self._count):
            self.start(at)
        try:
            for at in range(self._count):
                self.wait(at)
            servers.wait_until(self.leader_of_all, READY_SECONDS_MAX, "JetStream to have a leader")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for at in range(self._count):
            self.kill(at)

    def start(self, at: int) -> None:
        folder = self._folder / f"nats-{at}"
        folder.mkdir(exist_ok=True)
        lines = [
            f"server_name: n{at}",
            f'listen: "127.0.0.1:{self._ports[at]}"',
            f'jetstream {{ store_dir: "{folder}", max_file_store: {self._file_bytes} }}',
        ]
        if self._count > 1:
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes)
            lines.append(
                f'cluster {{ name: goodput, listen: "127.0.0.1:{self._routes[at]}", routes: [{routes}] }}'
            )
        config = folder / "server.conf"
        config.write_text("\n".join(lines) + "\n")
        with (folder / "log.txt").open("ab") as log:
            self.processes[at] = subprocess.Popen(
                ["nats-server", "-c", config], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def wait(self, at: int) -> None:
        """Until a server takes connections."""

        def answers() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", self._ports[at]), 1) as connection:
                    return connection.recv(4) == b"INFO"
            except OSError:
                return False

        servers.wait_until(answers, READY_SECONDS_MAX, f"NATS server {at}")

    def kill(self, at: int) -> None:
        process, self.processes[at] = self.processes[at], None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(30)

    def freeze(self, at: int) -> None:
        self._signal(at, signal.SIGSTOP)

    def thaw(self, at: int) -> None:
        self._signal(at, signal.SIGCONT)

    def _signal(self, at: int, number: signal.Signals) -> None:
        process = self.processes[at]
        assert process is not None
        process.send_signal(number)

    def leader_of_all(self) -> bool:
        """Whether JetStream answers."""
        return self.ask(lambda client: client.jetstream(timeout=2).account_info()) is not None

    def leader(self, stream: str) -> int:
        """The server that leads a stream."""
        info = self.ask(lambda client: client.jetstream(timeout=5).stream_info(stream))
        assert info is not None and info.cluster is not None and info.cluster.leader
        return int(info.cluster.leader[1:])

    def ask(self, question):
        """The answer to `question(client)`, a coroutine; None where there is none."""

        async def query():
            client = await nats.connect(self.urls, connect_timeout=2, max_reconnect_attempts=1)
            try:
                return await question(client)
            finally:
                await client.close()

        try:
            return asyncio.run(query())
        except (nats.errors.Error, OSError, asyncio.TimeoutError):
            return None
