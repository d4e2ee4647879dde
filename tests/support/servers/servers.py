"""Real Prometheus, VictoriaMetrics, Alertmanager and webhook servers on free loopback ports, for integration tests.

They run on this repository's rules, scrape configuration and dashboards, adapted (targets, intervals, windows, holds).
Context managers with a `url`; logs go to the given directory.

    require("prometheus", "prometheus-alertmanager")
    with Webhook() as webhook, Alertmanager(tmp_path, webhook.url) as alertmanager:
        config = render(tmp_path, {"goodput-node": ["127.0.0.1:9470"]}, alertmanagers=[alertmanager.address])
        with Prometheus(tmp_path, config) as prometheus:
            prometheus.wait_for("goodput_goodput_ratio", seconds=15)
            webhook.wait_for("GoodputRunStalled", seconds=30)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import yaml
from dashboards.rows import panels_of
from support.paths import ROOT
from support.servers import http_server

REPOSITORY = ROOT
RULES = REPOSITORY / "deploy" / "prometheus"
DASHBOARDS = REPOSITORY / "dashboards" / "generated"
READY_SECONDS_MAX = 60
# The board and the groups of rules that need GPUs and links; the others are content with ranks.
HARDWARE = {
    *("goodput-node", "goodput-gpu", "goodput_hardware", "goodput_gpu_alerts"),
    *("goodput_network_alerts", "goodput_host_alerts", "goodput_agent_alerts"),
}


def require(*binaries: str) -> None:
    """Skip the test, saying which, unless these programs are installed."""
    missing = [binary for binary in binaries if shutil.which(binary) is None]
    if missing:
        pytest.skip(
            f"not installed: {', '.join(missing)} (Debian packages prometheus, prometheus-alertmanager)"
        )


# Each process of the tests takes ports from a range of its own, below those that the system gives to whoever asks:
# between its being found and its being used, or while what uses it is started again, nobody else takes one.
_PORTS_FROM, _PORTS_EACH, _RANGES = 20_000, 500, 24
_claims: dict[int, socket.socket] = {}  # by process, since a fork has its parent's
_next_port = itertools.count(os.getpid())


def _port_range() -> int:
    """The number of this process's range: one that no other process has while it runs, of any run of tests."""
    if (own := os.getpid()) not in _claims:
        _claims[own] = one = socket.socket(socket.AF_UNIX)
        one.set_inheritable(False)
        for number in range(_RANGES):
            with contextlib.suppress(OSError):
                one.bind(f"\0goodput-test-ports-{number}")
                break
    name = _claims[own].getsockname()
    return int(name.rpartition(b"-")[2]) if name else own % _RANGES


def free_ports(count: int) -> list[int]:
    """Distinct free ports of 127.0.0.1."""
    process = _port_range()
    found: list[int] = []
    while len(found) < count:
        port = _PORTS_FROM + _PORTS_EACH * process + next(_next_port) % _PORTS_EACH
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
    return found


def wait_until(poll: Callable[[], object], seconds: float, what: str, every_seconds: float = 0.1):
    """The first true result of `poll`; AssertionError on timeout."""
    end = time.monotonic() + seconds
    while True:
        seen = poll()
        if seen:
            return seen
        if time.monotonic() >= end:
            raise AssertionError(f"no {what} within {seconds:g} s; last result: {seen!r}")
        time.sleep(every_seconds)


class Server:
    """A process on a free port that answers /-/ready; subclasses say how it is started."""

    name = ""

    def __init__(self, directory: Path):
        self.directory = Path(directory) / self.name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.url = f"http://{self.address}"
        self.log = self.directory / "log.txt"
        # Without trust_env a proxy of the environment would be used for loopback.
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self._process: subprocess.Popen | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def __enter__(self):
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        try:
            wait_until(self._is_ready, READY_SECONDS_MAX, f"{self.name} to be ready", every_seconds=0.05)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """SIGTERM, then SIGKILL after five seconds."""
        self.http.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(120)

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(
                f"{self.name} ended with {self._process.returncode}:\n{self.log.read_text()[-2000:]}"
            )
        try:
            return self.http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


class Prometheus(Server):
    """A Prometheus of its own, on a configuration from `render`."""

    name = "prometheus"

    def __init__(self, directory: Path, config: Path):
        super().__init__(directory)
        self._config = Path(config)

    def command(self) -> list[str]:
        return [
            "prometheus",
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={self.address}",
            "--log.level=warn",
        ]

    def over(
        self, expr: str, start: float, end: float, step_seconds: float
    ) -> dict[frozenset, dict[float, float]]:
        """The range vector of an expression: values by time, by labels. AssertionError for an invalid one."""
        query = {"query": expr, "start": start, "end": end, "step": step_seconds, "nocache": 1}
        answer = self.http.post("/api/v1/query_range", data=query).json()
        assert answer["status"] == "success", f"{expr}: {answer.get('error')}"
        return {
            frozenset(row["metric"].items()): {float(at): float(value) for at, value in row["values"]}
            for row in answer["data"]["result"]
        }

    def query(self, expr: str) -> list[Sample]:
        """The current instant vector of an expression. AssertionError for an invalid one."""
        answer = self.http.get("/api/v1/query", params={"query": expr}).json()
        assert answer["status"] == "success", f"{expr}: {answer.get('error')}"
        data = answer["data"]
        if data["resultType"] in ("scalar", "string"):
            return [Sample({}, float(data["result"][1]))]
        return [Sample(row["metric"], float(row["value"][1])) for row in data["result"]]

    def value(self, expr: str) -> float | None:
        """The value of an expression with one sample, None without a sample."""
        samples = self.query(expr)
        assert len(samples) <= 1, f"{expr} has {len(samples)} samples: {samples[:5]}"
        return samples[0].value if samples else None

    def wait_for(self, expr: str, seconds: float) -> list[Sample]:
        """Wait until the expression has a sample (write the condition into it: `x > 3`); return them all."""
        return wait_until(lambda: self.query(expr), seconds, expr)

    def alerts(self) -> list[dict]:
        """Pending and firing alerts, as the HTTP API gives them: labels, annotations, state, value."""
        return self.http.get("/api/v1/alerts").json()["data"]["alerts"]

    def rules(self) -> list[dict]:
        """Every rule with its health and lastError, as the HTTP API gives them."""
        groups = self.http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def targets(self) -> list[dict]:
        """Active targets with their health and lastError, as the HTTP API gives them."""
        return self.http.get("/api/v1/targets", params={"state": "active"}).json()["data"]["activeTargets"]


class VictoriaMetrics(Prometheus):
    """A VictoriaMetrics of its own; it is given what a Prometheus has by remote write (see `render`)."""

    name = "victoria-metrics"

    def __init__(self, directory: Path):
        Server.__init__(self, directory)

    @property
    def write_url(self) -> str:
        return f"{self.url}/api/v1/write"

    def command(self) -> list[str]:
        return [
            "victoria-metrics",
            f"-storageDataPath={self.directory / 'data'}",
            f"-httpListenAddr={self.address}",
            "-search.latencyOffset=0s",  # Else the newest half minute is not shown.
            "-loggerLevel=WARN",
        ]


class Alertmanager(Server):
    """An Alertmanager of its own that sends everything, resolved too, to one webhook, at once."""

    name = "alertmanager"

    def __init__(self, directory: Path, webhook_url: str, group_by: Sequence[str] = ("alertname", "run")):
        super().__init__(directory)
        config = {
            "route": {
                "receiver": "webhook",
                "group_by": list(group_by),
                "group_wait": "0s",
                "group_interval": "1s",
                "repeat_interval": "1h",
            },
            "receivers": [
                {"name": "webhook", "webhook_configs": [{"url": webhook_url, "send_resolved": True}]},
            ],
        }
        self._config = self.directory / "alertmanager.yml"
        self._config.write_text(yaml.safe_dump(config))

    def command(self) -> list[str]:
        return [
            "prometheus-alertmanager",
            f"--config.file={self._config}",
            f"--storage.path={self.directory / 'data'}",
            f"--web.listen-address={self.address}",
            "--cluster.listen-address=",  # Empty: alone, without a port for peers.
            "--log.level=warn",
        ]

    def alerts(self) -> list[dict]:
        """Active alerts, as the HTTP API gives them."""
        return self.http.get("/api/v2/alerts").json()


class Webhook:
    """Receives Alertmanager's notifications and records them and their alerts in order of arrival."""

    def __init__(self):
        self.alerts: list[dict] = []
        self.messages: list[dict] = []
        webhook = self

        class Handler(http_server.Handler):
            def do_POST(self):
                message = json.loads(self.body())
                webhook.messages.append(message)
                webhook.alerts.extend(message["alerts"])
                self.answer(200)

        self._server = http_server.HttpServer(Handler)
        self.url = f"{self._server.url}/"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.close()

    def wait_for(self, alertname: str, seconds: float, status: str = "firing", **labels: str) -> dict:
        """The first alert received of this name, status (firing, resolved) and labels, as it was sent."""
        want = {"alertname": alertname, **labels}

        def look():
            alerts = [alert for alert in self.alerts if alert["status"] == status]
            return next((alert for alert in alerts if want.items() <= alert["labels"].items()), None)

        return wait_until(look, seconds, f"{status} {want} at the webhook")


def render(
    directory: Path,
    targets: Mapping[str, Sequence[str]],
    *,
    alertmanagers: Sequence[str] = (),
    scrape_seconds: float = 1,
    evaluation_seconds: float = 1,
    windows: Mapping[str, str] | None = None,
    hold: Mapping[str, str] | str | None = None,
    substitute: Mapping[str, str] | None = None,
    remote_write: str = "",
) -> Path:
    """Write the shipped configuration and rules, adapted, into a directory; return the configuration's path.

    `targets` are host:port per job; a job that is not named is left out. `windows` replaces ranges and
    offsets ({"5m": "10s"} turns [5m] and offset 5m), `hold` is the alerts' `for`, for all or by name, and
    `substitute` replaces text in expressions, each of which must occur in one at least ({"> 60": "> 5"}), and
    `remote_write` is a URL that is given every sample.
    """
    directory = Path(directory)
    config = yaml.safe_load((RULES / "prometheus.yml").read_text())
    config["global"] = {
        "scrape_interval": _ms(scrape_seconds),
        "evaluation_interval": _ms(evaluation_seconds),
    }
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    for name, addresses in targets.items():
        jobs[name]["static_configs"] = [{"targets": list(addresses)}]
    config["scrape_configs"] = [jobs[name] for name in targets]
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]}

    if remote_write:
        queue = {"batch_send_deadline": "500ms", "max_shards": 1}
        config["remote_write"] = [{"url": remote_write, "queue_config": queue}]

    files = {name: yaml.safe_load((RULES / name).read_text()) for name in config["rule_files"]}
    rules = [rule for file in files.values() for group in file["groups"] for rule in group["rules"]]
    for text in substitute or {}:
        assert any(text in rule["expr"] for rule in rules), f"no shipped expression contains {text!r}"
    for file in files.values():
        for group in file["groups"]:
            group.pop("interval", None)  # Its own pace would outlast a test.
    for rule in rules:
        _adapt(rule, windows or {}, hold, substitute or {})
    for name, file in files.items():
        (directory / name).write_text(yaml.safe_dump(file, sort_keys=False, width=10_000))
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def _adapt(rule: dict, windows: Mapping[str, str], hold, substitute: Mapping[str, str]) -> None:
    for old, new in substitute.items():
        rule["expr"] = rule["expr"].replace(old, new)
    rule["expr"] = shorten(rule["expr"], windows)
    for key, text in rule.get("annotations", {}).items():
        rule["annotations"][key] = shorten(text, windows)
    if "alert" in rule and hold is not None:
        rule["for"] = hold if isinstance(hold, str) else hold.get(rule["alert"], rule["for"])


def shorten(expr: str, windows: Mapping[str, str]) -> str:
    """The expression with every range [5m] and offset 5m replaced as `windows` says; others stay."""
    return re.sub(r"(?<=\[)\w+(?=\])|(?<=\boffset )\w+", lambda found: windows.get(found[0], found[0]), expr)


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


class Expression(NamedTuple):
    """`kind` is panel, mark (an annotation), record or alert; `name` says where, `group` in which board or rules."""

    kind: str
    name: str
    text: str
    group: str


def expressions(
    run: str = "$run", interval: str = "$__rate_interval", rank: str = "0", span: str = ""
) -> list[Expression]:
    """Every expression of the generated dashboards and of the shipped rules, dashboard variables replaced."""
    found = []
    for path in sorted(DASHBOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        queries = [
            ("panel", f"{panel['title']} {target['refId']}", target["expr"])
            for panel in panels_of(board)
            for target in panel["targets"]
        ]
        queries += [
            ("mark", one["name"], one["expr"])
            for one in board.get("annotations", {}).get("list", [])
            if one.get("expr")
        ]
        for kind, name, text in queries:
            text = re.sub(r"\$__range\b", lambda _: span or interval, text)
            text = re.sub(r"\$__(rate_interval|interval)\b", lambda _: interval, text)
            for variable, value in {
                "$run": run,
                "$rank": rank,
                "$instance": ".*",
                "$gpu": ".*",
                "$cluster": ".*",
            }.items():
                text = text.replace(variable, value)
            found.append(Expression(kind, f"{board['title']}: {name}", text, board["uid"]))
    for name in yaml.safe_load((RULES / "prometheus.yml").read_text())["rule_files"]:
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            for rule in group["rules"]:
                kind = "record" if "record" in rule else "alert"
                found.append(Expression(kind, rule[kind], rule["expr"], group["name"]))
    return found


_KEYWORDS = frozenset(("and", "or", "unless", "bool", "inf", "nan", "atan2"))


def series_of(expr: str) -> set[str]:
    """Names of the series that an expression reads, histogram suffixes and _total included."""
    bare = re.sub(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])*'", "", expr)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\boffset\s+\S+", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    names = re.findall(r"(?<![\w.:])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()", bare)
    return set(names) - _KEYWORDS
