"""Tokens and TLS from end to end: `goodput serve`, `goodput node`, a training rank and Prometheus, as real processes.

The rank trains on whatever happens to tokens; nothing of a token is in a log, an error or a command line.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import warnings
from pathlib import Path

import httpx
import pytest
import yaml
from support.paths import SUPPORT
from support.servers import servers
from support.servers.certificates import Authority
from support.servers.servers import wait_until

from goodput import cli

RANK = SUPPORT / "integration" / "secured_rank.py"
SRC = os.pathsep.join(str(servers.REPOSITORY / name) for name in ("src", "exporters"))


class Parts:
    """Processes of goodput with their logs in files, ended by their ids."""

    def __init__(self, folder: Path):
        self.folder, self.started = folder, {}
        environ = {key: value for key, value in os.environ.items() if not key.startswith("GOODPUT")}
        self.environ = {
            **environ,
            "PYTHONPATH": SRC,
            "GOODPUT_DIR": str(folder / "pages"),
            "GOODPUT_RUN": "r1",
        }

    def start(self, name: str, *command: str, **environment: str) -> subprocess.Popen:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env={**self.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.started[name]

    def goodput(self, *words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "goodput", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=300
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def line(self, name: str, words: str) -> str:
        def poll():
            process = self.started[name]
            assert process.poll() is None, self.log(name)
            return next((line for line in self.log(name).splitlines() if words in line), None)

        return wait_until(poll, 30, f"{name} to say {words!r}", every_seconds=0.02)

    def end(self) -> None:
        for process in self.started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.started.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Stack:
    """The parts, their addresses, tokens and certificates."""

    def __init__(self, folder: Path):
        self.folder, self.parts = folder, Parts(folder)
        self.authority = Authority(folder)
        self.cert, self.key = self.authority.issue("server")
        self.tokens: dict[str, str] = {}
        (folder / "pages").mkdir()
        for name, scope in (("nodes", "ingest"), ("prometheus", "read")):
            (folder / name).write_text(self.create(name, scope))
        self.verify = ssl.create_default_context(cafile=self.authority.cert)
        self.http = httpx.Client(verify=self.verify, trust_env=False, timeout=60)

    def begin(self) -> None:
        folder = self.folder
        tls = ("--tls-cert", str(self.cert), "--tls-key", str(self.key), "--tokens", "tokens.json")
        serve = self.parts.start("serve", "-m", "goodput", "serve", "--listen", "127.0.0.1:0", *tls)
        self.serve_pid = serve.pid
        self.url = self.parts.line("serve", "page and API on").split()[-1]
        node = ("node", "--listen", "127.0.0.1:0", "--interval", "0.1", "--push-interval", "0.2", *tls)
        given = {"GOODPUT_TOKEN_FILE": str(folder / "nodes"), "GOODPUT_CA_FILE": str(self.authority.cert)}
        self.node = self.parts.start("node", "-m", "goodput", *node, "--aggregator", self.url, **given)
        self.rank = self.parts.start("rank", str(RANK), str(folder), RANK="0", WORLD_SIZE="1")
        self.node_url = self.parts.line("node", "serves").split("serves ")[1].split(",")[0]

    def create(self, name: str, scope: str, *more: str) -> str:
        command = ("token", "create", "--scope", scope, "--name", name, "--file", "tokens.json", *more)
        made = self.parts.goodput(*command)
        assert made.returncode == 0, made.stderr
        self.tokens[f"{name} {len(self.tokens)}"] = made.stdout.strip()
        return made.stdout

    def hand_out(self, name: str, text: str) -> None:
        """In one move, so that nobody reads half of it."""
        (self.folder / "part").write_text(text)
        os.replace(self.folder / "part", self.folder / name)

    def get(self, url: str, token: str | None = None) -> httpx.Response:
        return self.http.get(url, headers={"Authorization": f"Bearer {token}"} if token else {})

    def read(self, path: str) -> httpx.Response:
        return self.get(self.url + path, (self.folder / "prometheus").read_text().strip())

    def steps_kept(self) -> int:
        answer = self.read("/api/v1/runs/r1")
        return answer.json()["steps"]["kept"] if answer.status_code == 200 else 0

    def trained(self) -> tuple[int, float]:
        number, slowest = (self.folder / "steps").read_text().split() or (0, 0)
        return int(number), float(slowest)

    def node_series(self, name: str, **labels: str) -> float:
        answer = self.get(self.node_url, (self.folder / "prometheus").read_text().strip())
        wanted = name + (
            "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}" if labels else ""
        )
        (line,) = [line for line in answer.text.splitlines() if line.startswith(wanted + " ")]
        return float(line.split()[-1])

    def end(self) -> None:
        (self.folder / "stop").touch()
        self.http.close()
        self.parts.end()


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    found = Stack(tmp_path_factory.mktemp("secured"))
    try:
        found.begin()
        wait_until(lambda: found.steps_kept() > 0, 60, "steps at the aggregator", every_seconds=0.05)
        yield found
    finally:
        found.end()


def test_run_is_hidden_without_permission(stack):
    for url in (f"{stack.url}/api/v1/runs", f"{stack.url}/metrics", stack.node_url):
        assert stack.get(url).status_code == 401
        assert stack.get(url, stack.tokens["nodes 0"]).status_code == 403
        answer = stack.get(url, stack.tokens["prometheus 1"])
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
    assert stack.get(f"{stack.url}/healthz").headers["strict-transport-security"].startswith("max-age=")
    assert stack.get(stack.node_url.replace("/metrics", "/healthz")).status_code == 200
    scoped = stack.create("some", "read", "--run", "r1").strip()
    wait_until(lambda: stack.get(f"{stack.url}/api/v1/runs", scoped).status_code == 200, 60, "the new token")
    wait_until(lambda: stack.get(stack.node_url, scoped).status_code == 403, 60, "the agent to know it")
    assert stack.node_series("goodput_node_requests_refused_total", reason="missing") >= 1


def test_tls_certificates_are_verified(stack):
    for url in (stack.url, stack.node_url):
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https:", "http:"), trust_env=False)
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(url, trust_env=False)
    address = stack.url.removeprefix("https://").split(":")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(address) as plain, pytest.raises((ssl.SSLError, OSError)):
        old.wrap_socket(plain)


def test_prometheus_scrapes_both_with_a_credentials_file(stack, tmp_path):
    servers.require("prometheus")
    jobs = {"goodput-aggregator": stack.url, "goodput-node": stack.node_url}
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": name,
                "scheme": "https",
                "authorization": {"credentials_file": str(stack.folder / "prometheus")},
                "tls_config": {"ca_file": str(stack.authority.cert)},
                "static_configs": [{"targets": [url.split("/")[2]]}],
            }
            for name, url in jobs.items()
        ],
    }
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    with servers.Prometheus(tmp_path, path) as prometheus:
        for series in (
            'goodput_goodput_ratio{run="r1"}',
            'goodput_steps_total{run="r1"}',
            "goodput_aggregator_info",
        ):
            assert prometheus.wait_for(series, seconds=15)


def test_token_rotation_and_revocation_do_not_stop_training(stack):
    """Rotate: make the second, hand it out, revoke the first. Then a revocation by mistake, and its repair."""
    second = stack.create("nodes", "ingest")
    stack.hand_out("nodes", second)
    number = stack.tokens["nodes 0"].split("_")[2]
    assert stack.parts.goodput("token", "revoke", "--id", number, "--file", "tokens.json").returncode == 0
    before = stack.steps_kept()
    wait_until(
        lambda: stack.steps_kept() > before, 60, "more steps under the second token", every_seconds=0.05
    )
    assert stack.parts.goodput("token", "revoke", "--name", "nodes", "--file", "tokens.json").returncode == 0
    failures = ("goodput_node_push_failures_total", {"reason": "unauthorized"})
    wait_until(lambda: stack.node_series(failures[0], **failures[1]) >= 2, 60, "pushes to be refused")
    trained, kept = stack.trained()[0], stack.steps_kept()
    wait_until(lambda: stack.trained()[0] > trained + 100, 60, "a hundred more steps", every_seconds=0.05)
    assert stack.steps_kept() == kept, "nothing came meanwhile"
    assert stack.rank.poll() is None and stack.parts.log("rank") == ""
    assert stack.node_series("goodput_node_backlog_rows") >= 50
    stack.hand_out("nodes", stack.create("nodes", "ingest"))
    wait_until(lambda: stack.steps_kept() >= kept + 100, 60, "what was kept to be pushed", every_seconds=0.1)
    stack.parts.line("node", "accepted again")
    lines = [
        line for line in stack.parts.log("node").splitlines() if "push to" in line and "pushes to" not in line
    ]
    assert [("HTTP 401: the token was not accepted" in line, "accepted again" in line) for line in lines] == [
        (True, False),
        (False, True),
    ], lines


def test_a_broken_token_file_keeps_the_tokens_from_before(stack):
    path = stack.folder / "tokens.json"
    good = path.read_text()
    path.write_text(good[:-20])
    name = "goodput_aggregator_token_reload_errors_total 0.0"
    wait_until(
        lambda: name not in stack.read("/metrics").text, 60, "the error to be counted", every_seconds=0.05
    )
    errors = "goodput_node_token_reload_errors_total"
    wait_until(lambda: stack.node_series(errors) >= 1, 60, "the agent to count it too", every_seconds=0.05)
    assert stack.read("/api/v1/runs").status_code == 200
    path.write_text(good)
    assert "stays in use" in stack.parts.log("serve")


def test_a_replaced_certificate_is_served_without_a_restart(stack):
    def serial(url: str) -> str:
        host, port = url.split("/")[2].split(":")
        plain = socket.create_connection((host, int(port)))
        with stack.verify.wrap_socket(plain, server_hostname="localhost") as spoken:
            return spoken.getpeercert()["serialNumber"]

    before = {url: serial(url) for url in (stack.url, stack.node_url)}
    for new, old in zip(stack.authority.issue("renewed"), (stack.cert, stack.key), strict=True):
        shutil.copy(new, old)
    for url, number in before.items():
        wait_until(
            lambda url=url, number=number: serial(url) != number,
            10,
            "the new certificate",
            every_seconds=0.05,
        )
    kept = stack.steps_kept()
    wait_until(lambda: stack.steps_kept() > kept, 60, "pushes to go on", every_seconds=0.05)
    of_agent = stack.get(stack.node_url, (stack.folder / "prometheus").read_text().strip()).text
    for name, text in (("aggregator", stack.read("/metrics").text), ("node", of_agent)):
        series = f"goodput_{name}_certificate_expiry_timestamp_seconds"
        expiry = float(re.search(rf"^{series} (\S+)", text, re.M)[1])
        assert 0 < expiry - time.time() < 2 * 86_400 + 60


def test_no_secret_is_shown(stack):
    """In a log, a command line or a series."""
    seen = "".join(stack.parts.log(name) for name in stack.parts.started)
    for process in stack.parts.started.values():
        seen += Path(f"/proc/{process.pid}/cmdline").read_text()
        # A variable may name a file and hold no token.
        seen += Path(f"/proc/{process.pid}/environ").read_text()
    seen += stack.read("/metrics").text + stack.read("/api/v1/runs").text
    seen += stack.parts.goodput("token", "list", "--json", "--file", "tokens.json").stdout
    seen += (stack.folder / "tokens.json").read_text()
    for ledger in stack.folder.glob("goodput-ledger.db*"):
        seen += ledger.read_bytes().decode("latin-1")
    assert stack.tokens
    for text in stack.tokens.values():
        assert text.split("_")[-1] not in seen


def test_node_check_says_whether_pushes_are_accepted(stack):
    given = ("--directory", str(stack.folder / "other"), "--listen", "127.0.0.1:0", "--aggregator", stack.url)
    right = ("--token-file", str(stack.folder / "nodes"), "--ca-file", str(stack.authority.cert))
    wrong = ("--token-file", str(stack.folder / "prometheus"), "--ca-file", str(stack.authority.cert))

    def finding(*arguments: str) -> dict:
        shown = stack.parts.goodput("node", "--check", "--json", "--gpu-driver", "amd", *given, *arguments)
        return next(one for one in json.loads(shown.stdout) if one["what"] == "aggregator")

    assert finding(*right)["status"] == "ok"
    refused = finding(*wrong)
    assert refused["status"] == "failed" and "HTTP 403: token prometheus has scope read" in refused["detail"]


# ---- Certificates of clients


def test_missing_client_certificate_is_rejected(tmp_path):
    """Without tokens a certificate of the authority opens everything; agents and tools show theirs."""
    authority, strangers = Authority(tmp_path), Authority(tmp_path, "strangers")
    cert, key = map(str, authority.issue("server"))
    mine, foreign = authority.issue("agent"), strangers.issue("foreign")
    parts = Parts(tmp_path)
    try:
        tls = ("--tls-cert", cert, "--tls-key", key, "--client-ca", str(authority.cert))
        parts.start("serve", "-m", "goodput", "serve", "--listen", "127.0.0.1:0", *tls)
        url = parts.line("serve", "page and API on").split()[-1]
        for shown, is_in in ((None, False), (foreign, False), (mine, True)):
            context = ssl.create_default_context(cafile=authority.cert)
            if shown:
                context.load_cert_chain(*shown)
            with httpx.Client(verify=context, trust_env=False) as client:
                if is_in:
                    assert client.get(f"{url}/api/v1/runs").status_code == 200
                else:
                    with pytest.raises(httpx.TransportError):
                        client.get(f"{url}/healthz")
        (tmp_path / "pages").mkdir()
        node = ("node", "--listen", "127.0.0.1:0", "--push-interval", "0.2", "--aggregator", url)
        given = (
            "--ca-file",
            str(authority.cert),
            "--client-cert",
            str(mine[0]),
            "--client-key",
            str(mine[1]),
        )
        parts.start("node", "-m", "goodput", *node, *given)
        node_url = parts.line("node", "serves").split("serves ")[1].split(",")[0]
        text = 'goodput_node_pushes_total{outcome="accepted"}'

        def pushed():
            lines = httpx.get(node_url, trust_env=False).text.splitlines()
            return any(line.startswith(text) and float(line.split()[-1]) > 0 for line in lines)

        wait_until(pushed, 60, "the agent to be let in", every_seconds=0.05)
    finally:
        parts.end()


# ---- What is refused


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("serve", "--listen", "0.0.0.0:0"), "behind a proxy"),
        (("serve", "--listen", "0.0.0.0:0", "--tokens", "tokens.json"), "--insecure-http"),
        (("serve", "--listen", "127.0.0.1:0", "--tls-cert", "x"), "go together"),
        (("node", "--listen", "0.0.0.0:0"), "--metrics-public"),
        (("node", "--client-cert", "x"), "go together"),
        (("node", "--aggregator", "https://me:secret@head:9471"), "can read a password in a URL"),
    ],
)
def test_unsafe_options_are_refused(words, complaint, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    try:
        status = cli.main(list(words))
    except SystemExit as refused:
        status = refused.code
    output = capsys.readouterr().err
    assert status == 2 and complaint in output and "secret" not in output
