"""A cluster on one machine: four node agents, an aggregator, Prometheus, VictoriaMetrics, Alertmanager, all of them real.

The ranks and nodes are those of cluster_world.py. The aggregator requires tokens except for /metrics. Prometheus has
the shipped rules, of which only WINDOWS and HOLD differ, and sends all samples to VictoriaMetrics. Alertmanager has
the shipped routes and inhibitions; its waits are shorter, and all its receivers are one webhook.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import yaml
from support.node.nvml_stub import control
from support.paths import TESTS
from support.servers import servers

from goodput.child_processes import Child

WORLD = Path(__file__).with_name("cluster_world.py")
SOURCES = os.pathsep.join(str(servers.REPOSITORY / name) for name in ("src", "exporters"))
OF_WORLD = os.pathsep.join([SOURCES, str(servers.REPOSITORY), str(TESTS)])
RUN, NODES, RANKS = "cluster/run 1", 4, 32
SCRAPE_SECONDS, EVALUATION_SECONDS = 2, 2
STALL_SECONDS = 4
SCOPE = "cluster/*"
# The agent takes its node's name from the system, and all agents are on one here.
AGENT = """
import socket, sys
name = sys.argv.pop(1)
socket.gethostname = lambda: name
from goodput.cli import main
sys.exit(main())
"""
# As shipped except for the shortest, so that a hang is detected soon.
WINDOWS = {"1m": "8s"}
# Except for alerts on a server that does not answer, which a slow one must not fire.
HOLD = {
    one.name: "0s"
    for one in servers.expressions()
    if one.kind == "alert"
    and one.name
    not in ("GoodputAgentDown", "GoodputAggregatorDown", "GoodputTelemetryMissing", "GoodputRunFailed")
}
# Its message is sent once and is to have the culprit, which may be known later.
HOLD["GoodputRunStalled"] = "4s"
WAITS = {"group_wait": "1s", "group_interval": "1s"}


class ShippedAlertmanager(servers.Alertmanager):
    """An Alertmanager with the shipped routes and inhibitions, all of whose receivers are one webhook."""

    def __init__(self, directory: Path, webhook_url: str):
        super().__init__(directory, webhook_url)
        config = yaml.safe_load((servers.RULES / "alertmanager.yml").read_text())
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [{"url": webhook_url, "send_resolved": True}]
        for route in (config["route"], *config["route"]["routes"]):
            route.update(WAITS)
        self._config.write_text(yaml.safe_dump(config))

    def groups(self) -> list[dict]:
        """As the HTTP API gives them: labels, receiver, alerts with their status."""
        return self.http.get("/api/v2/alerts/groups").json()


class Cluster:
    def __init__(self, folder: Path):
        self.folder, self.children, self.attempt = folder, {}, 0
        self.http = httpx.Client(trust_env=False, timeout=60)
        self.webhook = servers.Webhook()
        self.alertmanager = ShippedAlertmanager(folder, self.webhook.url)
        self.victoria = servers.VictoriaMetrics(folder)
        self.environ = {"PYTHONPATH": SOURCES, "NO_PROXY": "127.0.0.1"}

    def __enter__(self) -> Cluster:
        try:
            self._make()
            self.webhook.__enter__()
            self.alertmanager.__enter__()
            self.victoria.__enter__()
            self._serve()
            self.prometheus = servers.Prometheus(self.folder, self._config())
            self.prometheus.__enter__()
        except BaseException:
            self.__exit__()
            raise
        self.began = time.time()
        return self

    def __exit__(self, kind=None, *_) -> None:
        if kind is AssertionError:
            self._show_logs()
        for name in ("prometheus", "victoria", "alertmanager"):
            if hasattr(self, name):
                getattr(self, name).close()
        for child in reversed(self.children.values()):
            child.end(0.0)
        self.webhook.__exit__()
        self.http.close()

    def _show_logs(self) -> None:
        """Print the end of each process's log."""
        for name, child in self.children.items():
            print(f"-- {name}: {child.poll()}\n{child.tail()}")

    # -- events

    def train(self) -> None:
        """Start the ranks' next attempt, which lasts until `die`."""
        self.attempt += 1
        self._start("world", str(WORLD), "train", str(self.folder), str(self.attempt), PYTHONPATH=OF_WORLD)

    def die(self) -> None:
        """Kill all ranks at once, as a scheduler would."""
        self.children["world"].process.kill()
        self.children["world"].process.wait()

    def hang(self) -> None:
        (self.folder / "hang").touch()

    def go_on(self) -> None:
        (self.folder / "hang").unlink()

    def misbehave(self) -> None:
        """Send the wrong requests of clients: a wrong token, a malformed report, no HTTP."""
        bearer = {"Authorization": f"Bearer {self._token}"}
        for _ in range(3):
            self.http.get(f"{self.aggregator}/api/v1/runs", headers={"Authorization": "Bearer wrong"})
        self.http.post(f"{self.aggregator}/api/v1/ingest", headers=bearer, content=b"none")
        host, _, port = self.aggregator.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=5) as line:
            line.sendall(b"no HTTP\r\n\r\n")
            line.recv(1000)

    def spoil_tokens(self) -> None:
        """Make the token file unreadable; the tokens in force stay valid."""
        (self.folder / "tokens.json").write_text("{")

    def still(self) -> int:
        """End everything that makes samples, so that queries are fast; returns the last second that has all samples."""
        for child in self.children.values():
            child.process.kill()
        now = int(time.time())
        config = self.folder / "prometheus.yml"
        written = yaml.safe_load(config.read_text())
        newest = f"max(timestamp(up)) >= {self.prometheus.over('max(timestamp(up))', now, now, 1)[frozenset()][now]}"
        servers.wait_until(lambda: self.victoria.over(newest, now, now, 1), 60, "the last samples")
        config.write_text(yaml.safe_dump({"remote_write": written["remote_write"]}))
        os.kill(self.prometheus.pid, signal.SIGHUP)
        return now

    # -- its processes

    def _make(self) -> None:
        made = self._start("make", str(WORLD), "make", str(self.folder), PYTHONPATH=OF_WORLD)
        self.environ["LD_LIBRARY_PATH"] = str(control.build(self.folder / "lib").parent)
        words = f"token create --scope ingest --run {SCOPE} --name agents --expires 90d --file {self.folder}/tokens.json"
        run = [sys.executable, "-m", "goodput", *words.split()]
        self._token = subprocess.run(
            run, env={**os.environ, **self.environ}, capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        (self.folder / "token").write_text(self._token)
        (self.folder / "token").chmod(0o600)
        assert made.process.wait(120) == 0, (self.folder / "make.log").read_text()

    def _serve(self) -> None:
        ledger = f"sqlite:///{self.folder / 'ledger.db'}"
        words = f"--listen 127.0.0.1:0 --stall {STALL_SECONDS} --tokens {self.folder}/tokens.json --metrics-public"
        self._start("serve", "-m", "goodput", "serve", *words.split(), "--ledger", ledger)
        self.aggregator = self.children["serve"].address(60)
        for number in range(NODES):
            at = self.folder / f"n{number}"
            words = (
                f"--listen 127.0.0.1:0 --interval 0.5 --push-interval 1 --gpu-driver nvml --directory {at}/pages "
                f"--sysfs {at}/sys --procfs {at}/proc --path {at} "
                f"--aggregator {self.aggregator} --token-file {self.folder}/token"
            )
            environ = {"GOODPUT_NVML_STUB": str(at / "nvml.txt")}
            self._start(f"n{number}", "-c", AGENT, f"n{number}", "node", *words.split(), **environ)
        self.agents = [self.children[f"n{number}"].address(60) for number in range(NODES)]

    def _config(self) -> Path:
        targets = {
            "goodput-node": [agent.removeprefix("http://") for agent in self.agents],
            "goodput-aggregator": [self.aggregator.removeprefix("http://")],
        }
        return servers.render(
            self.folder, targets, alertmanagers=[self.alertmanager.address], scrape_seconds=SCRAPE_SECONDS,
            evaluation_seconds=EVALUATION_SECONDS, windows=WINDOWS, hold=HOLD, remote_write=self.victoria.write_url,
            substitute={"600 * group": "1 * group"},  # The age from which a run has alerts.
        )  # fmt: skip

    def _start(self, name: str, *arguments: str, **environ: str) -> Child:
        command = [sys.executable, *arguments]
        self.children[name] = Child(name, command, self.folder, {**self.environ, **environ})
        return self.children[name]
