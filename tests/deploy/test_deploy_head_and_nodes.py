"""The commands of docs/deploy.md, "A head and its nodes": those that need no packages or services are run as they stand.

In place of the hosts are folders, in place of their addresses free ports of loopback, which each certificate has.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.servers import servers
from support.servers.child_processes import ChildProcesses

NODES = ("node001", "node002", "node003")
TARGETS_MAX, COMMANDS_MAX = 4, 15
TEXT = (servers.REPOSITORY / "docs" / "deploy.md").read_text()
SECTION = TEXT[TEXT.index("## A head and its nodes") : TEXT.index("### Where everything is")]
COMMANDS = [line[4:].partition("   #")[0].strip() for line in SECTION.splitlines() if line.startswith("    ")]


def command(begin: str) -> str:
    """The documented command that begins so."""
    (found,) = (one for one in COMMANDS if one.startswith(begin))
    return found


def test_four_targets_take_at_most_fifteen_commands():
    assert f"It takes {len(COMMANDS)} commands" in SECTION and len(COMMANDS) <= COMMANDS_MAX
    assert shlex.split(command("goodput provision"))[3:] == list(NODES)
    loops = [one for one in COMMANDS if one.startswith("for node in ")]
    assert len(loops) == 2
    assert all(one.startswith(f"for node in {' '.join(NODES)}; do ") for one in loops)


class Hosts:
    """The head and its nodes as folders, with the files that the documented commands put there, and their processes."""

    def __init__(self, folder: Path):
        self.folder, self.private, self.head = folder, folder / "private", folder / "head"
        names = (*NODES, "aggregator", "alertmanager")
        self.ports = dict(zip(names, servers.free_ports(len(names)), strict=True))
        self.processes = ChildProcesses(folder, {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)})

    def provision(self) -> None:
        words = ["--root", str(self.head), "--folder", str(self.private)]
        documented = shlex.split(command("goodput provision"))[1:]
        subprocess.run([sys.executable, "-m", "goodput", *documented, *words], check=True, timeout=300)
        unpack = re.search(
            r"tar -xf \$node\.tar -C /(?= )", command("for node in node001 node002 node003; do ssh")
        )
        for node in NODES:
            (self.folder / node).mkdir()
            text = unpack[0].replace("$node.tar", str(self.private / f"{node}.tar"))
            text = f"{text.removesuffix('/')}{self.folder / node} --no-same-owner"
            subprocess.run(["sh", "-c", text], check=True, timeout=60)
        copied = command("cp /etc/goodput/prometheus/").replace("/etc/", f"{self.head}/etc/")
        (self.head / "etc" / "prometheus").mkdir()
        subprocess.run(["sh", "-c", copied], check=True, timeout=60)
        for path in (
            self.head / "etc" / "prometheus" / "prometheus.yml",
            self.head / "etc" / "goodput" / "nodes.yml",
        ):
            path.write_text(self.here("head", path.read_text()))

    def here(self, host: str, text: str) -> str:
        """A host's file or options with its paths and addresses as they are in the test."""
        text = text.replace("/etc/goodput/", f"{self.folder / host}/etc/goodput/")
        text = text.replace("0.0.0.0:9471", f"127.0.0.1:{self.ports['aggregator']}")
        text = text.replace("head:9471", f"localhost:{self.ports['aggregator']}")
        text = text.replace("127.0.0.1:9093", f"127.0.0.1:{self.ports['alertmanager']}")
        for node in NODES:
            text = text.replace(f"{node}:9470", f"localhost:{self.ports[node]}")
        return text.replace("0.0.0.0:9470", f"127.0.0.1:{self.ports[host]}") if host in self.ports else text

    def options(self, host: str, service: str, variable: str) -> str:
        text = (self.folder / host / "etc" / "default" / service).read_text()
        (found,) = re.findall(rf'(?m)^{variable}="(.*)"$', text)
        return self.here(host, found)

    def start(self) -> None:
        """The aggregator and all agents."""
        options = self.options("head", "goodput-aggregator", "GOODPUT_SERVE_OPTIONS")
        self.processes.goodput("serve", f"--ledger sqlite:///{self.folder}/ledger.db {options}")
        self.agents = {node: self.start_agent(node) for node in NODES}

    def start_agent(self, node: str) -> subprocess.Popen:
        pages = self.folder / node / "pages"
        pages.mkdir(exist_ok=True)
        options = self.options(node, "goodput-node", "GOODPUT_NODE_OPTIONS")
        return self.processes.start(
            node, "-m", "goodput", "node", "--directory", str(pages), *options.split()
        )


class ShippedAlertmanager(servers.Alertmanager):
    """With the documented configuration, at an address that is given."""

    def __init__(self, directory: Path, config: Path, port: int):
        super().__init__(directory, "http://127.0.0.1:1/")
        self._config, self.address = config, f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    servers.require("prometheus", "prometheus-alertmanager", "openssl", "curl")
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    made.provision()
    made.start()
    yield made
    made.processes.end()


@pytest.fixture(scope="module")
def prometheus(hosts):
    etc = hosts.head / "etc" / "prometheus"
    port = hosts.ports["alertmanager"]
    with (
        ShippedAlertmanager(hosts.folder, etc / "alertmanager.yml", port),
        servers.Prometheus(hosts.folder, etc / "prometheus.yml") as started,
    ):
        yield started


def test_documented_commands_bring_all_targets_up(hosts, prometheus):
    prometheus.wait_for(f"sum(up) == {TARGETS_MAX}", seconds=60)
    found = {target["scrapeUrl"]: (target["health"], target["lastError"]) for target in prometheus.targets()}
    urls = [f"https://localhost:{hosts.ports[name]}/metrics" for name in (*NODES, "aggregator")]
    assert found == dict.fromkeys(urls, ("up", ""))
    rules = servers.wait_until(prometheus.rules, 60, "rules")
    assert len(rules) > 100
    known = prometheus.http.get("/api/v1/alertmanagers").json()["data"]["activeAlertmanagers"]
    assert known == [{"url": f"http://127.0.0.1:{hosts.ports['alertmanager']}/api/v2/alerts"}]
    # The nodes push, each with its own token.
    prometheus.wait_for(f"count(goodput_node_pushes_total > 0) == {len(NODES)}", seconds=60)


def test_documented_request_of_a_reader_is_accepted(hosts):
    """And no token of a node reads runs."""
    text = hosts.here(
        "head", command("curl -s --cacert").replace("-s ", "-s -w '%{http_code}' -o /dev/null ")
    )
    requests = [
        text,
        text.replace("/read-token", "/metrics-token"),
        re.sub(r"\S+/read-token", f"{hosts.private}/node001.token", text),
    ]
    servers.wait_until(lambda: status_of(text) == "200", 60, "the aggregator to have read its ledger")
    assert [status_of(text) for text in requests] == ["200", "401", "403"]


def status_of(request: str) -> str:
    """What curl prints of a request: the status."""
    return subprocess.run(["sh", "-c", request], capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("foreign", "certificate signed by unknown authority"),
        ("expired", "certificate has expired"),
        ("name", "certificate is valid for other, not localhost"),
        ("token", "401"),
    ],
)
def test_prometheus_says_why_a_node_is_down(hosts, prometheus, damage, error):
    """What goes wrong on one node is that target's error; the others stay up."""
    etc = hosts.folder / "node003" / "etc" / "goodput"
    kept = {name: (etc / name).read_bytes() for name in ("node.crt", "node.key", "node-tokens.json")}
    address = f"localhost:{hosts.ports['node003']}"
    up = f'up{{instance="{address}"}}'
    prometheus.wait_for(f"{up} == 1", seconds=60)
    try:
        hosts.agents["node003"].kill()
        hosts.agents["node003"].wait()
        spoil(hosts, etc, damage)
        hosts.agents["node003"] = hosts.start_agent("node003")
        target = servers.wait_until(lambda: failing(prometheus, error), 60, f"{error!r} of a target")
        assert address in target["scrapeUrl"]
    finally:
        for name, content in kept.items():
            (etc / name).write_bytes(content)
    # The agent takes the replaced files up by itself.
    prometheus.wait_for(f"sum(up) == {TARGETS_MAX}", seconds=60)


def failing(prometheus: servers.Prometheus, error: str) -> dict | None:
    """The target that is down for this reason."""
    return next(
        (one for one in prometheus.targets() if one["health"] == "down" and error in one["lastError"]), None
    )


def spoil(hosts: Hosts, etc: Path, damage: str) -> None:
    """Replace the node's certificate, or the tokens that it accepts."""
    if damage == "token":
        shutil.copy(hosts.head / "etc" / "goodput" / "tokens.json", etc / "node-tokens.json")
        return
    folder = hosts.folder / damage
    if damage != "foreign":
        folder.mkdir()
        for name in ("ca.crt", "ca.key"):
            shutil.copy(hosts.private / name, folder)
    script = servers.REPOSITORY / "deploy" / "certificates.sh"
    subprocess.run([script, folder, "node003"], check=True, capture_output=True, timeout=60)
    if damage in ("expired", "name"):
        resign(folder, "other" if damage == "name" else "localhost", expired=damage == "expired")
    for end in ("key", "crt"):
        (folder / f"node003.{end}").replace(etc / f"node.{end}")


def resign(folder: Path, name: str, *, expired: bool) -> None:
    """Sign the key of node003 once more, for another name or until yesterday."""
    days = "-1" if expired else "2"
    text = f"openssl x509 -req -in {folder}/request -CA {folder}/ca.crt -CAkey {folder}/ca.key -out {folder}/node003.crt"
    (folder / "names").write_text(f"subjectAltName=DNS:{name}\n")
    request = [
        "openssl",
        "req",
        "-new",
        "-key",
        folder / "node003.key",
        "-subj",
        "/CN=x",
        "-out",
        folder / "request",
    ]
    subprocess.run(list(map(str, request)), check=True, capture_output=True, timeout=60)
    signed = [*text.split(), "-extfile", str(folder / "names"), "-days", days]
    subprocess.run(signed, check=True, capture_output=True, timeout=60)
