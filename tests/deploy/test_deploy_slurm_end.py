"""Slurm's word to the aggregator that a job is over: of which jobs it is given, and with what."""

import os
import subprocess

import pytest
from support.deploy.deploy_words import DEPLOY, parsed


class Controller:
    """A controller whose scontrol knows one job, with programs that write down how they are called."""

    def __init__(self, folder, state: str):
        self.folder = folder
        reported = f"JobId=4711 JobName=train UserId=me(1) JobState={state} Reason=None Restarts=0"
        programs = {
            "scontrol": f'[ "$*" = "show job --oneliner 4711" ] && echo "{reported}"',
            "goodput": f'echo "$* by $GOODPUT_AGGREGATOR" >>{folder}/calls; echo run 4711 is over',
            "logger": f'echo "$*" >>{folder}/syslog',
        }
        for name, text in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        (folder / "defaults").write_text(
            f"GOODPUT_AGGREGATOR=http://head:9471\nGOODPUT_PROGRAM={folder}/goodput\n"
        )
        self.environ = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "GOODPUT_DEFAULTS": str(folder / "defaults"),
            "SLURM_JOB_ID": "4711",
        }

    def run(self) -> None:
        """Until what it has left in the background is over too: the end of a pipe that all of it holds."""
        reported, held = os.pipe()
        with os.fdopen(reported) as over:
            done = subprocess.run(
                [str(DEPLOY / "slurm" / "end.sh")],
                env=self.environ,
                capture_output=True,
                text=True,
                timeout=300,
                pass_fds=(held,),
            )
            os.close(held)
            over.read()
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("state", "reason"), [("CANCELLED", "cancelled"), ("TIMEOUT", "cancelled"), ("COMPLETED", "finished")]
)
def test_finished_job_is_reported(tmp_path, state, reason):
    one = Controller(tmp_path, state)
    one.run()
    (output,) = one.lines("syslog")
    assert output == f"-t goodput-slurm -- job 4711, {state}: run 4711 is over"
    (call,) = one.lines("calls")
    words, _, aggregator = call.partition(" by ")
    assert aggregator == "http://head:9471", "the command finds it in its environment"
    found = parsed(*words.split())
    assert (found.run, found.reason, found.wait) == ("4711", reason, 120.0)


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PENDING", "REQUEUED", ""])
def test_failed_or_requeued_job_is_not_reported(tmp_path, state):
    one = Controller(tmp_path, state)
    one.run()
    assert one.lines("calls") == [] and one.lines("syslog") == []
