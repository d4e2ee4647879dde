"""deploy/slurm/end.sh on a real Slurm, with a real aggregator: which jobs end their runs, and when."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from support.account.account_history import Process
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.servers.servers import wait_until
from support.servers.slurm import Slurm, require_slurm

from goodput.aggregator.api.app import create_app

# Each with how its run stands in the end; down: it goes on once Slurm starts it again. None times out, which Slurm notices only
# twice a minute.
STATUSES = {
    "cancelled": "cancelled",
    "completed": "finished",
    "failed": "failed",
    "requeued": "down",
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
