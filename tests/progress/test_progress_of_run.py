"""`goodput run` shows the progress of the job from outside of its processes."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time

import pytest
from support.paths import SUPPORT
from support.rank_page.page_maker import Rank
from support.servers.certificates import Authority
from support.servers.http_server import Handler, HttpServer
from support.servers.servers import wait_until
from support.top.tmux import Terminal

from goodput.cli import run as run_command
from goodput.progress.beside_run import Command, Display, Job
from goodput.progress.estimate import Progress, progress_of
from goodput.progress.kubeflow import Sender, body
from goodput.progress.local_runs import STEPS_MAX, LocalRuns

TRAINING = SUPPORT / "progress/training.py"
PROGRESS = Progress("r1", "running", 45, 100, 2.5, 79.6, 0.75, 1, 3, "loader")


class Endpoint:
    """What Kubeflow Trainer's controller is sent; answers with `status`."""

    def __init__(self, folder):
        self.requests, self.status = [], 200
        authority, endpoint = Authority(folder), self

        class Answers(Handler):
            def do_POST(self):
                endpoint.requests.append((self.path, self.headers["Authorization"], json.loads(self.body())))
                self.answer(endpoint.status, b"{}")

        self._server = HttpServer(Answers, authority.issue("server"))
        (folder / "token").write_text("secret\n")
        self.environ = {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://localhost:{self._server.server_address[1]}/job/status",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(authority.cert),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token"),
        }

    def close(self):
        self._server.close()


@pytest.fixture
def endpoint(tmp_path):
    with contextlib.closing(Endpoint(tmp_path)) as one:
        yield one


def run(pages, *options):
    return [sys.executable, "-m", "goodput", "run", "--directory", str(pages), "--name", "job", *options]


def test_one_line_for_the_job_where_piped_and_for_kubeflow(tmp_path, endpoint):
    """Not one line per rank; the process of rank 0 has no thread or socket for it."""
    options = ("--progress-interval", "0.5", sys.executable, str(TRAINING), str(tmp_path), "100000")
    errors = tmp_path / "errors"
    line = re.compile(r"goodput: job: step (\d+)/100000 [\d.]+ %")
    # On a busy machine the first lines come before two steps are done, without a rate.
    whole = re.compile(line.pattern + r", [\d.]+ (?:steps/s|s a step), ETA .*, goodput [\d.]+ %")

    def lines() -> list[str]:
        return [one for one in errors.read_text().split("\n") if one.startswith("goodput: ")]

    with errors.open("wb") as file:
        command = run(tmp_path / "pages", *options)
        environ = {**os.environ, **endpoint.environ}
        trained = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=file, text=True)
        wait_until(
            lambda: sum(map(bool, map(whole.match, lines()))) >= 2 and endpoint.requests,
            60,
            "lines of progress and a report",
        )
        (tmp_path / "stop").touch()
        printed, _ = trained.communicate(timeout=60)
    steps = [int(line.match(one)[1]) for one in lines()]
    assert trained.returncode == 0 and steps == sorted(set(steps)), errors.read_text()
    assert "tasks=1 sockets=0" in printed
    wait_until(
        lambda: endpoint.requests[-1][2]["trainerStatus"]["progressPercentage"] == 100, 60, "last report"
    )
    assert {request[:2] for request in endpoint.requests} == {("/job/status", "Bearer secret")}


def test_line_below_the_output_of_a_terminal(tmp_path):
    with Terminal(
        run(tmp_path / "pages", sys.executable, str(TRAINING), str(tmp_path), "100000"), tmp_path
    ) as terminal:
        screen = terminal.wait_for("job: step ", "of step 40 is 0.5", "ETA", "goodput ")
        lines = screen.rstrip("\n").split("\n")
        assert len(lines) == 24 and "ETA" in lines[-1] and not any("ETA" in line for line in lines[:-1])
        assert [line for line in lines if line.startswith("loss")][:2] == [
            "loss of step 0 is 0.5",
            "loss of step 20 is 0.5",
        ]
        terminal.resize(100, 30)
        end = time.monotonic() + 30
        while "ETA" not in terminal.screen.split("\n")[29] or terminal.screen.count("ETA") > 1:
            assert time.monotonic() < end, terminal.screen
            time.sleep(0.1)
        (tmp_path / "stop").touch()
        terminal.wait_for("exit=0", "goodput itself cost", without="ETA")
        # The whole terminal scrolls again.
        assert (terminal.value("scroll_region_upper"), terminal.value("scroll_region_lower")) == ("0", "29")


def test_quiet_run_starts_nothing_but_for_kubeflow(monkeypatch):
    started = []
    monkeypatch.setattr(run_command, "_start_beside", lambda module, *_, **__: started.append(module))
    run_command.start_progress({}, 0.0)
    assert started == []
    run_command.start_progress({"KUBEFLOW_TRAINER_SERVER_URL": "https://a"}, 0.0)
    run_command.start_progress({}, 60.0)
    assert started == ["goodput.progress.beside_run"] * 2


def test_body_of_a_status():
    assert body(PROGRESS, 1737628245) == {"trainerStatus": {
        "lastUpdatedTime": "2025-01-23T10:30:45Z",
        "progressPercentage": 45,
        "estimatedRemainingSeconds": 80,
        "metrics": [
            {"name": "goodput", "value": "0.75"}, {"name": "stepsPerSecond", "value": "2.5"},
            {"name": "currentStep", "value": "45"}, {"name": "totalSteps", "value": "100"},
            {"name": "restarts", "value": "1"}, {"name": "slowestRank", "value": "3"},
        ],
    }}  # fmt: skip
    unknown = PROGRESS._replace(done=None, total=None, steps_per_second=None, remaining_seconds=None)
    assert "progressPercentage" not in body(unknown, 0)["trainerStatus"]
    assert (
        body(PROGRESS._replace(remaining_seconds=1e12), 0)["trainerStatus"]["estimatedRemainingSeconds"]
        == 2**31 - 1
    )


def test_failures_are_reported(endpoint, tmp_path):
    environ = endpoint.environ
    assert Sender.from_environment({}) is None
    assert Sender.from_environment({**environ, "GOODPUT_KUBEFLOW": "0"}) is None
    assert Sender.from_environment(environ).send(PROGRESS, 0) == ""
    endpoint.status = 403
    assert Sender.from_environment(environ).send(PROGRESS, 0) == "HTTP 403"
    plain = {**environ, "KUBEFLOW_TRAINER_SERVER_URL": "http://localhost:1/"}
    assert "no https" in Sender.from_environment(plain).send(PROGRESS, 0)
    (tmp_path / "token").unlink()
    assert "token" in Sender.from_environment(environ).send(PROGRESS, 0)
    assert len(endpoint.requests) == 2


def test_only_the_node_of_rank_0_shows_the_job(tmp_path):
    """And only for the command that has started it."""
    mine, other = (Job(str(tmp_path), pid) for pid in (os.getpid(), 1 << 30))
    assert mine.progress() is None  # No folder has pages yet.
    Rank(tmp_path, run="mine", rank=1, total_steps=100).train(20)
    assert mine.progress() is None
    Rank(tmp_path, run="mine", rank=0, total_steps=100).train(20)
    progress = mine.progress()
    assert (progress.run, progress.done, progress.total, other.progress()) == ("mine", 20, 100, None)


def test_more_steps_than_are_read_count(tmp_path):
    """Of a living rank the last steps are read, of one that is gone all; the account has them all."""
    rank = Rank(tmp_path, run="mine", rank=0, world_size=1, total_steps=10_000).train(STEPS_MAX + 100)
    runs = LocalRuns([str(tmp_path)], 60.0)
    (one,) = runs.read("mine")
    attempt = next(iter(one.run.attempts.values()))
    assert len(attempt.rows) == STEPS_MAX
    assert progress_of(one.document).done == STEPS_MAX + 100
    assert runs.read("other") == []
    rank.train(1)
    assert progress_of(runs.read()[0].document).done == STEPS_MAX + 101


def test_end_is_printed_once_without_a_terminal(monkeypatch):
    """The launcher may take long to end after its ranks; a run that goes on is printed again."""
    shown = []
    monkeypatch.setattr("goodput.progress.beside_run.os.isatty", lambda _: False)
    monkeypatch.setattr("goodput.progress.beside_run.write", lambda _, text: shown.append(text))
    display = Display(Command(os.getpid()), 1e-9)
    over = PROGRESS._replace(status="finished", steps_per_second=2.4)
    for one in (PROGRESS, PROGRESS, over, over._replace(goodput=0.7), PROGRESS, over):
        display.show(one)
    assert ["finished" in text for text in shown] == [False, False, True, False, True]
