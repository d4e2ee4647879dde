"""Slurm's word to the aggregator that a job is over: of which jobs it is given, and with what."""

import os
import subprocess

import pytest
from support.deploy.deploy_words import DEPLOY, parsed

ENDED = "2026-11-23T01:30:34"


class Controller:
    """A controller that knows one job, in one state after the other, with programs that write down how they are called."""

    def __init__(self, folder, *states: str):
        self.folder = folder
        (folder / "states").write_text("".join(f"{state}\n" for state in states))
        programs = {
            "squeue": f"""[ "$*" = "--noheader --states=all --jobs=4711 --format=%A %T %e" ] || exit 1
                echo "471 RUNNING N/A"
                state=$(sed -n 1p {folder}/states)
                [ $(wc -l <{folder}/states) = 1 ] || sed -i 1d {folder}/states
                [ -z "$state" ] || echo "4711 $state {ENDED}"
                """,
            "sleep": f'echo "$1" >>{folder}/sleeps',
            "goodput": f'echo "$* by $GOODPUT_AGGREGATOR" >>{folder}/calls; echo run 4711 is over',
            "logger": f'echo "$*" >>{folder}/syslog',
        }
        for name, text in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        (folder / "defaults").write_text(
            f"GOODPUT_AGGREGATOR=http://head:9471\nGOODPUT_PROGRAM={folder}/goodput\nGOODPUT_END_WAIT=60\n"
            f"PATH={folder}:{os.environ['PATH']}\n"
        )
        # As slurmctld calls it: without a PATH.
        self.environ = {"GOODPUT_DEFAULTS": str(folder / "defaults"), "SLURM_JOB_ID": "4711"}

    def run(self, status: int = 0) -> str:
        """Its standard error. Until what it has left in the background is over too: the end of a pipe that all of it holds."""
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
        assert (done.returncode, done.stdout) == (status, "")
        return done.stderr

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        *(("CANCELLED", "cancelled"), ("TIMEOUT", "cancelled"), ("PREEMPTED", "cancelled")),
        *(
            ("COMPLETED", "finished"),
            ("FAILED", "failed"),
            ("NODE_FAIL", "failed"),
            ("OUT_OF_MEMORY", "failed"),
        ),
    ],
)
def test_finished_job_is_reported(tmp_path, state, reason):
    one = Controller(tmp_path, "COMPLETING", "", "COMPLETING", state)
    assert one.run() == ""
    (output,) = one.lines("syslog")
    assert output == f"-t goodput-slurm -- job 4711, {state}: run 4711 is over"
    (call,) = one.lines("calls")
    words, _, aggregator = call.partition(" by ")
    assert aggregator == "http://head:9471", "the command finds it in its environment"
    found = parsed(*words.split())
    assert (found.run, found.reason, found.wait) == ("4711", reason, 120.0)
    assert found.at == parsed("end", "4711", "--at", ENDED).at, "when the allocation ended"
    assert one.lines("sleeps") == ["1", "2", "3"]


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "SPECIAL_EXIT", "RUNNING"])
def test_requeued_job_is_not_reported(tmp_path, state):
    one = Controller(tmp_path, "COMPLETING", state)
    one.run()
    assert one.lines("calls") == [] and one.lines("syslog") == []


@pytest.mark.parametrize(("state", "shown"), [("COMPLETING", "COMPLETING"), ("", "unknown")])
def test_wait_for_the_final_state_is_bounded(tmp_path, state, shown):
    one = Controller(tmp_path, state)
    one.run()
    assert sum(map(int, one.lines("sleeps"))) >= 60 and one.lines("calls") == []
    (output,) = one.lines("syslog")
    assert output.endswith(f"job 4711: no final state in time ({shown}); its run was not ended")


@pytest.mark.parametrize("is_there", [False, True])
def test_missing_program_is_reported(tmp_path, is_there):
    """At once, and where the administrator looks: the system's log, and slurmctld's, which has the exit status."""
    one = Controller(tmp_path, "COMPLETING", "FAILED")
    (tmp_path / "goodput").unlink()
    if is_there:
        (tmp_path / "goodput").write_text("#!/bin/sh\n")
    errors = one.run(status=127)
    text = f"{tmp_path}/goodput is not there or cannot be run by "
    assert errors.startswith(f"goodput: {text}") and "the run of job 4711 is not ended" in errors
    assert f"set GOODPUT_PROGRAM in {tmp_path}/defaults" in errors
    (output,) = one.lines("syslog")
    assert output.startswith(f"-t goodput-slurm -- {text}") and one.lines("sleeps") == []
