"""deploy/slurm on a real Slurm, with a real aggregator: jobs get an agent and are measured, and which end their runs."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import datetime

import pytest
from support.account.account_history import Process
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.servers.servers import wait_until
from support.servers.slurm import Slurm, is_alive, require_slurm

from goodput.aggregator.api.app import create_app

# Each with how its run stands in the end; the one that is requeued goes on once Slurm starts it again. None times out, which Slurm notices only
# twice a minute.
STATUSES = {
    "cancelled": "cancelled",
    "completed": "finished",
    "failed": "failed",
    "requeued": "failed",
    "node failed": "failed",
}
UNTIL_TOLD = "while [ ! -e go ]; do sleep 0.1; done; "
SCRIPTS = {"completed": UNTIL_TOLD + "exit 0", "failed": UNTIL_TOLD + "exit 3"}
OPTIONS = {"requeued": "--requeue", "node failed": "--no-requeue", "failed": "--job-name=JobState=CANCELLED"}


def killed_a_minute_ago() -> Process:
    """A rank that died a minute ago, whose job did not end with it."""
    return Process(start=time.time() - 120).steps(55, forward=1).saved().steps(5, forward=1).killed()


@pytest.fixture
def aggregator(tmp_path):
    require_slurm()
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        yield client


def test_end_of_each_job_reaches_the_aggregator(tmp_path, aggregator):
    with Slurm(tmp_path, str(aggregator.base_url).rstrip("/")) as slurm:
        jobs = {
            what: slurm.submit(SCRIPTS.get(what, "sleep 1000"), OPTIONS.get(what, "--comment=none"))
            for what in STATUSES
        }
        for job in jobs.values():
            slurm.wait_for(job, "RUNNING")
        for job in jobs.values():
            push(aggregator, rank_report(killed_a_minute_ago(), job))
        end_each(slurm, jobs)

        def account(what: str) -> dict:
            return aggregator.get(f"/api/v1/runs/{jobs[what]}").json()

        def statuses() -> dict[str, str]:
            return {what: account(what)["status"] for what in STATUSES}

        wait_until(lambda: statuses() == STATUSES, 60, "ends of the runs")
        # The one that reports nothing has seen its job's state too.
        wait_until(lambda: slurm.hooks() == 0, 60, "end of all scripts")
        assert statuses() == STATUSES
        found = account("cancelled")
        assert found["end"] == datetime.fromisoformat(slurm.shown(jobs["cancelled"], "%e")).timestamp()
        assert found["states"]["down"] > 50, "its allocation outlived its rank"


def test_missing_program_is_in_the_controllers_log(tmp_path):
    """As its exit status: slurmctld drops what a script prints. The job is none the worse."""
    with Slurm(tmp_path, "http://127.0.0.1:1") as slurm:
        (slurm.folder / "goodput").unlink()
        job = slurm.submit("true")
        log = slurm.folder / "slurmctld.log"
        told = f"error: _run_script: JobId={job} EpilogSlurmctld exit status 127:0"
        wait_until(lambda: told in log.read_text(), 60, "exit status in the log")
        assert "is not there or cannot be run" not in log.read_text()
        slurm.wait_for(job, "COMPLETED")
        again = slurm.submit("true")
        slurm.wait_for(again, "COMPLETED")


TRAINING = """
import time, goodput
while not __import__("os").path.exists("go"):
    with goodput.step(), goodput.phase("forward"):
        time.sleep(0.01)
"""


def test_job_is_measured_by_the_agent_of_its_prolog(tmp_path):
    """The prolog starts an agent, the task prolog tells the job where its pages lie, the epilog replaces a dead agent."""
    with Slurm(tmp_path, "http://127.0.0.1:1") as slurm:
        (slurm.folder / "train.py").write_text(TRAINING)
        job = slurm.submit(f"srun {sys.executable} train.py")
        try:
            wait_until(lambda: [*slurm.pages.glob(f"{job}.0.*.page")], 60, "page of the job's rank")
        except AssertionError as error:
            logs = [path.read_text()[-2000:] for path in slurm.folder.glob("*.log")]
            raise AssertionError(f"{error}: {slurm.shown(job, '%T %r')} {logs}") from None
        first = slurm.agent_pid()
        assert is_alive(first) and slurm.pages.stat().st_mode & 0o7777 == 0o1777
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first), 60, "death of the agent")
        (slurm.folder / "go").touch()
        slurm.wait_for(job, "COMPLETED")
        wait_until(lambda: slurm.agent_pid() != first and is_alive(slurm.agent_pid()), 60, "another agent")
        assert "idle" in slurm.call("sinfo", "--noheader", "--format=%t"), "no prolog has drained the node"


def end_each(slurm: Slurm, jobs: dict[str, str]) -> None:
    """End the jobs, each as its name says."""
    slurm.call("scancel", jobs["cancelled"])
    slurm.call("scontrol", "requeue", jobs["requeued"])
    (slurm.folder / "go").touch()
    for what, state in (
        *(("completed", "COMPLETED"), ("failed", "FAILED")),
        *(("cancelled", "CANCELLED"), ("requeued", "PENDING")),
    ):
        slurm.wait_for(jobs[what], state)
    slurm.call("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    slurm.wait_for(jobs["node failed"], "NODE_FAIL")
