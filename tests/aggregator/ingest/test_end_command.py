"""`goodput end` against a real `goodput serve` with tokens: output, exit status and effect."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import httpx
import pytest
from support.account.account_history import Process
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_command import ServeCommand
from support.servers.servers import free_ports

from goodput.access import token_file
from goodput.access.tokens import make
from goodput.cli import end, main


class Site:
    """The server, and files with tokens."""

    def __init__(self, folder):
        kinds = {"nodes": "ingest", "reader": "read"}
        made = {name: make(name, scope) for name, scope in kinds.items()}
        made["others"] = make("others", "ingest", runs=("x*",))
        with token_file.changing(folder / "tokens.json") as tokens:
            tokens += [token for _, token in made.values()]
        self.texts = {name: text for name, (text, _) in made.items()}
        self.files = {name: str(folder / name) for name in made}
        for name, path in self.files.items():
            with open(path, "w") as out:
                out.write(self.texts[name])
        self.serve = ServeCommand(
            folder, f"sqlite:///{folder}/ledger.db", "--tokens", str(folder / "tokens.json")
        )
        self.client = httpx.Client(base_url=self.serve.url.rstrip("/"), timeout=60, trust_env=False)

    def push(self, *ranks: Process, run: str) -> None:
        body = body_of(*[rank_report(one, run) for one in ranks])
        answer = self.client.post("/api/v1/ingest", content=body, headers=self.bearer("nodes"))
        assert answer.status_code == 200, answer.text

    def status(self, run: str) -> str:
        return self.client.get(f"/api/v1/runs/{run}", headers=self.bearer("reader")).json()["status"]

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.texts[name]}"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    found = Site(tmp_path_factory.mktemp("site"))
    with found.serve, found.client:
        yield found


@pytest.fixture
def call(site, monkeypatch, capsys):
    """The command, in the environment of a node; status, standard output, standard error."""
    monkeypatch.setenv("GOODPUT_AGGREGATOR", site.serve.url)
    monkeypatch.setenv("GOODPUT_TOKEN_FILE", site.files["nodes"])

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(["end", *arguments])
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    return run


def pair() -> list[Process]:
    start = time.time() - 100
    return [Process(rank, 1, start, world_size=2).steps(20, forward=1) for rank in range(2)]


def test_end_command_ends_a_cancelled_run(site):
    site.push(*[one.killed() for one in pair()], run="vision/a b")
    assert site.status("vision%2Fa%20b") == "failed"
    command = [sys.executable, "-m", "goodput", "end", "vision/a b", "--url", site.serve.url]
    command += ["--token-file", site.files["nodes"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "run vision/a b is over, cancelled: 2 ranks ended\n"
    assert site.status("vision%2Fa%20b") == "cancelled"


@pytest.mark.parametrize("run", [".", ".."])
def test_end_command_takes_names_of_dots(site, call, run):
    site.push(*[one.killed() for one in pair()], run=run)
    assert call(run) == (0, f"run {run} is over, cancelled: 2 ranks ended\n", "")


def test_repeated_end_is_reported_and_json_printed(site, call):
    failed, killed = pair()
    site.push(failed.failed(), killed.killed(), run="twice")
    at = str(time.time() - 10)
    done = call("twice", "--reason", "failed", "--at", at)
    assert done == (0, "run twice is over, failed: 1 rank ended, 1 had reported their end\n", "")
    status, out, _ = call("twice", "--reason", "failed", "--at", at, "--json")
    want = {"run": "twice", "reason": "failed", "ended": 0, "known": 0, "alive": 0, "already": 2}
    assert (status, json.loads(out)) == (0, want)
    assert site.status("twice") == "failed"


def test_end_waits_for_live_ranks_then_refuses(site, call, monkeypatch):
    ranks = [one.silent(after=79) for one in pair()]
    site.push(*ranks, run="lives")
    status, out, stderr = call("lives", "--wait", "0")
    assert (status, out) == (1, "") and "HTTP 409: run 'lives' is running: 2 ranks are alive" in stderr
    assert stderr.count("\n") == 1 and stderr.endswith("; --force ends it now\n")
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        site.push(*[one.killed() for one in ranks], run="lives")

    monkeypatch.setattr(end, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    status, out, stderr = call("lives", "--wait", "20")
    assert slept == [end.AGAIN_SECONDS]
    assert (status, out) == (0, "run lives is over, cancelled: 2 ranks ended\n")
    assert stderr.startswith("waiting up to 20 s: run 'lives' is running") and stderr.count("\n") == 1


def test_by_force_it_does_not_wait(site, call):
    site.push(*[one.silent(after=79) for one in pair()], run="forced")
    status, out, _ = call("forced", "--force")
    assert (status, out) == (0, "run forced is over, cancelled: 2 ranks ended, 2 were still alive\n")


@pytest.mark.parametrize(
    ("arguments", "status", "pattern"),
    [
        (("nothing",), 1, r"HTTP 404: no run 'nothing'$"),
        (
            ("r", "--token-file", "{reader}"),
            1,
            r"HTTP 403: token reader has scope read; this requires scope",
        ),
        (
            ("r", "--token-file", "{others}"),
            1,
            r"HTTP 403: token others is not for run 'r'",
        ),
        (("r", "--token-file", "/nowhere"), 1, r"token file /nowhere: No such file"),
        (("r", "--url", "http://127.0.0.1:{closed}"), 1, r"127.0.0.1:\d+: .*[Rr]efused"),
        (("r", "--url", "https://127.0.0.1:{port}"), 1, r"begin with http://\?"),
        (("r", "--at", "tomorrow"), 2, r"'tomorrow': want a time as 2026"),
        (("r", "--at", "3999999999"), 1, r"HTTP 422: at 3999999999.0: want unix seconds in the past"),
        (("r", "--reason", "because"), 2, r"invalid choice: 'because'"),
        (("r", "--url", "goodput.internal"), 2, r"expected a URL such as http"),
        (("r", "--wait", "-1"), 2, r"expected 0 to 86400 seconds"),
        (("r", "--client-cert", "a.pem"), 2, r"--client-cert and --client-key go together"),
        (("",), 2, r"RUN must be 1 to 128"),
        (("a\nb",), 2, r"RUN must be 1 to 128"),
        ((), 2, r"required: RUN"),
    ],
)
def test_end_command_errors_are_one_line(site, call, arguments, status, pattern):
    site.push(*[one.killed() for one in pair()], run="r")
    given = {**site.files, "closed": free_ports(1)[0], "port": site.client.base_url.port}
    found, out, stderr = call(*(one.format(**given) for one in arguments))
    assert (found, out) == (status, "") and re.search(pattern, stderr.strip()), stderr
    assert status == 2 or stderr.count("\n") == 1


def test_end_without_an_aggregator_is_a_usage_error(call, monkeypatch):
    monkeypatch.delenv("GOODPUT_AGGREGATOR")
    status, _, stderr = call("r")
    assert status == 2 and stderr == "goodput end: no aggregator: set --url or GOODPUT_AGGREGATOR\n"


def test_the_help_has_an_example(call):
    status, out, _ = call("--help")
    assert status == 0 and "goodput end my-run --url https" in out


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-05-01T08:30:00Z", 1777624200), ("2026-05-01T10:30:00+02:00", 1777624200), ("12.5", 12.5)],
)
def test_times(text, seconds):
    assert end.moment(text) == seconds
