"""`goodput up` as a user runs it, with the real servers, and its failures."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.servers import servers

SECONDS_MAX = 90


class Up:
    """One `goodput up`, its data folder and what it printed."""

    def __init__(self, folder: Path, *arguments: str, **environ: str):
        self.folder, self.data, self.pages = folder, folder / "data", folder / "pages"
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        command = [sys.executable, "-m", "goodput", "up", "--data", str(self.data)]
        command += ["--directory", str(self.pages), "--free-ports", *arguments]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, **environ}
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def well(self) -> dict:
        """The line of JSON that it prints when all servers are ready."""

        def look():
            assert self.process.poll() is None, self.err.read_text()
            return self.out.read_text().endswith("\n")

        servers.wait_until(look, SECONDS_MAX, "the stack to be well")
        return json.loads(self.out.read_text())

    def ended(self, seconds: float) -> int:
        return self.process.wait(seconds)


def gone(pid: int) -> bool:
    """Whether no process, or only one that waits to be reaped by somebody else, has this pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def mentions(marker: str) -> list[str]:
    """Command lines of processes that mention this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line and not gone(int(path.parent.name)):
            found.append(line)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(up, what it printed) of the whole stack; the last test of the module to use it ends it."""
    servers.require("prometheus", "prometheus-alertmanager")
    with Up(tmp_path_factory.mktemp("up"), "--json", "--without-grafana") as up:
        yield up, up.well()


def get(url: str, **params) -> dict:
    return httpx.get(url, params=params, timeout=60, trust_env=False).json()


def test_all_servers_are_ready_when_printed(whole):
    _, found = whole
    assert set(found["urls"]) == {"aggregator", "node", "prometheus", "alertmanager"}
    assert found["absent"] == {"grafana": "not started (--without-grafana)"}
    for name, path in {
        "aggregator": "/healthz",
        "prometheus": "/-/ready",
        "alertmanager": "/-/ready",
    }.items():
        url = found["urls"][name].rstrip("/") + path
        assert httpx.get(url, timeout=60, trust_env=False).status_code == 200


def test_series_reach_prometheus(whole):
    _, found = whole
    query = found["urls"]["prometheus"] + "api/v1/query"

    def look(expression):
        return get(query, query=expression)["data"]["result"]

    servers.wait_until(lambda: look('goodput_node_cpu_seconds_total{job="goodput-node"}'), 60, "the agent")
    servers.wait_until(lambda: look('up{job="goodput-aggregator"} == 1'), 60, "the aggregator")


def test_rules_are_loaded_and_alerts_delivered(whole):
    _, found = whole
    groups = get(found["urls"]["prometheus"] + "api/v1/rules")["data"]["groups"]
    names = {rule["name"] for group in groups for rule in group["rules"]}
    assert {"GoodputRunStalled", "run:goodput:ratio_5m"} <= names
    status = get(found["urls"]["alertmanager"] + "api/v2/status")
    assert "GoodputRunStalled" in status["config"]["original"]

    def look():
        found_now = get(found["urls"]["prometheus"] + "api/v1/alertmanagers")["data"]["activeAlertmanagers"]
        return [one["url"] for one in found_now]

    address = found["urls"]["alertmanager"]
    assert servers.wait_until(look, 60, "an Alertmanager") == [address + "api/v2/alerts"]


def test_links_of_alerts_lead_back_to_these_servers(whole):
    """Unsaid, both would take the name of this host, where nobody listens."""
    _, found = whole
    for name in ("prometheus", "alertmanager"):
        command = Path(f"/proc/{found['pids'][name]}/cmdline").read_text().split("\0")
        assert f"--web.external-url={found['urls'][name]}" in command


def test_first_push_succeeds(whole):
    up, found = whole
    assert list(found["pids"])[-1] == "node"
    query = found["urls"]["prometheus"] + "api/v1/query"
    accepted = 'goodput_node_pushes_total{outcome="accepted"} > 0'
    servers.wait_until(lambda: get(query, query=accepted)["data"]["result"], 60, "a push")
    assert get(query, query='goodput_node_pushes_total{outcome!="accepted"} > 0')["data"]["result"] == []
    assert "refused" not in (up.data / "logs" / "node.log").read_text()


def test_second_stack_is_refused(whole):
    up, _ = whole
    done = subprocess.run(
        [sys.executable, "-m", "goodput", "up", "--data", str(up.data), "--without-prometheus"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert f"another `goodput up` uses {up.data}" in done.stderr
    assert up.process.poll() is None


def test_one_ctrl_c_ends_every_process_within_seconds(whole):
    up, found = whole
    assert len(found["pids"]) == 4 and not any(gone(pid) for pid in found["pids"].values())
    written_at_the_end = up.data / "alertmanager" / "nflog"
    assert not written_at_the_end.exists()
    up.process.send_signal(signal.SIGINT)
    assert up.ended(60) == 0
    assert [name for name, pid in found["pids"].items() if not gone(pid)] == []
    assert mentions(str(up.folder)) == []
    assert written_at_the_end.exists()  # So it ended by a signal, and was not only killed with its parent.
    assert "Traceback" not in up.err.read_text()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A stack of the aggregator and the agent alone, which starts in a second."""
    with Up(tmp_path_factory.mktemp("small"), "--json", "--without-prometheus") as up:
        yield up, up.well()


def test_dying_part_ends_the_stack(small):
    up, found = small
    assert set(found["urls"]) == {"aggregator", "node"}
    os.kill(found["pids"]["aggregator"], signal.SIGKILL)
    assert up.ended(60) == 1
    assert "aggregator ended by signal 9" in up.err.read_text()
    assert str(up.data / "logs" / "aggregator.log") in up.err.read_text()
    assert mentions(str(up.folder)) == []


def test_a_killed_stack_leaves_no_process(tmp_path):
    with Up(tmp_path, "--json", "--without-prometheus") as up:
        found = up.well()
        up.process.kill()
        up.process.wait()
        servers.wait_until(lambda: all(map(gone, found["pids"].values())), 60, "the children to die with it")
        servers.wait_until(lambda: not mentions(str(tmp_path)), 60, "theirs to die as well")


def test_sigterm_ends_it(tmp_path):
    with Up(tmp_path, "--without-prometheus") as up:
        servers.wait_until(lambda: "Ctrl-C ends them" in up.out.read_text(), SECONDS_MAX, "the table")
        table = up.out.read_text()
        assert re.search(r"page and API +http://127\.0\.0\.1:\d+/\n", table)
        assert re.search(r"Prometheus +not started \(--without-prometheus\)\n", table)
        up.process.send_signal(signal.SIGTERM)
        assert up.ended(60) == 0
        assert up.out.read_text().endswith("goodput up: ended\n")


@pytest.mark.parametrize(
    ("present", "missing"), [((), "prometheus"), (("prometheus",), "alertmanager")], ids=str
)
def test_missing_server_gives_install_advice(tmp_path, present, missing):
    for name in present:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "goodput", "up", "--data", str(tmp_path / "data"), "--free-ports"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert f"{missing} is not installed" in done.stderr
    assert "apt install" in done.stderr and f"--without-{missing}" in done.stderr


def test_uncreatable_data_folder_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "goodput", "up", "--data", str(tmp_path / "file" / "data")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert f"--data {tmp_path / 'file' / 'data'}: Not a directory" in done.stderr


GRAFANA = """#!{python}
import http.server, json, os, sys
seen = {{name: value for name, value in os.environ.items() if name.startswith("GF_")}}
open({seen!r}, "w").write(json.dumps(seen | {{"argv": sys.argv[1:]}}))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
http.server.HTTPServer((os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])), Handler).serve_forever()
"""


def test_grafana_gets_data_source_and_dashboards(tmp_path):
    """Grafana itself cannot be had here: a stand-in that answers as it does, and tells what it was given."""
    servers.require("prometheus")
    programs, seen = tmp_path / "bin", tmp_path / "seen.json"
    programs.mkdir()
    (programs / "grafana").write_text(GRAFANA.format(python=sys.executable, seen=str(seen)))
    (programs / "grafana").chmod(0o755 | stat.S_IXUSR)
    path = f"{programs}:{os.environ['PATH']}"
    with Up(tmp_path, "--json", "--without-alertmanager", PATH=path) as up:
        found = up.well()
        given = json.loads(seen.read_text())
        up.process.send_signal(signal.SIGINT)
        assert up.ended(60) == 0
    assert given["argv"][0] == "server"
    assert found["urls"]["grafana"] == f"http://127.0.0.1:{given['GF_SERVER_HTTP_PORT']}/"
    provisioning = Path(given["GF_PATHS_PROVISIONING"])
    source = (provisioning / "datasources" / "goodput.yml").read_text()
    assert f"url: {found['urls']['prometheus'].rstrip('/')}\n" in source
    boards = re.search(r"path: (.+)", (provisioning / "dashboards" / "goodput.yml").read_text())[1]
    assert list(Path(boards).glob("*.json"))
