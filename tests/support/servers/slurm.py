"""A real Slurm of one node on loopback, as root and without munge, which calls the scripts of deploy/slurm.

with Slurm(tmp_path, aggregator=url) as slurm:
    job = slurm.submit("sleep 1000")
    slurm.wait_for(job, "RUNNING")
    slurm.call("scancel", job)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.servers.servers import REPOSITORY, free_ports, wait_until

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
READY_SECONDS_MAX, STATE_SECONDS_MAX = 30, 60


def require_slurm() -> None:
    """Skip the test where Slurm is not installed, or its daemons cannot run."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian packages slurmctld, slurmd)")
    if os.geteuid() != 0:
        pytest.skip("slurmd starts jobs as root alone")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Slurm:
    """A controller and one node with eight CPUs; `folder` gets configuration, state and logs."""

    def __init__(self, folder: Path, aggregator: str):
        require_slurm()
        self.folder = folder / "slurm"
        (self.folder / "state").mkdir(parents=True)
        # slurmstepd makes sockets in it, whose paths have at most 107 bytes: those of a test's folder are longer.
        self._spool = tempfile.TemporaryDirectory(prefix="slurm-")
        self.scripts, self.pages = self.folder / "scripts", self.folder / "pages"
        shutil.copytree(REPOSITORY / "deploy" / "slurm", self.scripts)
        self._write("goodput", f'#!/bin/sh\nexec {sys.executable} -m goodput "$@"\n')
        self._write("defaults", self._defaults(aggregator))
        # The daemons pass no environment.
        for name in ("prolog", "epilog", "task_prolog", "end"):
            export = f"export GOODPUT_DEFAULTS={self.folder}/defaults"
            self._write(name, f"#!/bin/sh\n{export}\nexec {self.scripts}/{name}.sh\n")
        (self.folder / "slurm.conf").write_text(self._configuration(*free_ports(2)))
        self.environ = {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf"}
        self._servers: list[subprocess.Popen] = []

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def _defaults(self, aggregator: str) -> str:
        return (
            f"GOODPUT_AGGREGATOR={aggregator}\nGOODPUT_PROGRAM={self.folder}/goodput\n"
            f"SLURM_CONF={self.folder}/slurm.conf\n"
            f"GOODPUT_DIR={self.pages}\nGOODPUT_STATE={self.folder}/agent\nGOODPUT_USER=root\n"
            'GOODPUT_NODE_OPTIONS="--listen 127.0.0.1:0"\n'
        )

    def _configuration(self, controller_port: int, node_port: int) -> str:
        host = socket.gethostname().partition(".")[0]
        return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self._spool.name}
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
KillWait=2
PrologFlags=Alloc
Prolog={self.folder}/prolog
Epilog={self.folder}/epilog
TaskProlog={self.folder}/task_prolog
EpilogSlurmctld={self.folder}/end
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""

    def __enter__(self) -> Slurm:
        try:
            for command in (["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", "n1"]):
                with (self.folder / f"{command[0]}.log").open("wb") as log:
                    self._servers.append(
                        subprocess.Popen(
                            command,
                            env=self.environ,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                        )
                    )
            try:
                wait_until(self._is_ready, READY_SECONDS_MAX, "node that is idle")
            except AssertionError as error:
                logs = [path.read_text().splitlines()[-1:] for path in self.folder.glob("*.log")]
                pytest.skip(f"Slurm's daemons cannot run here: {error}; {logs}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        if self._servers and self._servers[0].poll() is None:
            self.call("scancel", "--user=root", check=False)
            # Else what starts the jobs outlives the node.
            self._is_over(
                lambda: not self.call("squeue", "--noheader", "--states=running,completing", check=False)
            )
        for server in reversed(self._servers):
            server.terminate()
        for server in self._servers:
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(60)
        self._end_agent()
        self._spool.cleanup()

    def _end_agent(self) -> None:
        """The agent that the prolog has started, if it has."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(pid := self.agent_pid(), signal.SIGTERM)
            self._is_over(lambda: not is_alive(pid))

    def agent_pid(self) -> int:
        return int((self.folder / "agent" / "agent.pid").read_text())

    @staticmethod
    def _is_over(poll) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(poll, 10, "end of all jobs")

    def _is_ready(self) -> bool:
        if any(server.poll() is not None for server in self._servers):
            raise AssertionError("one has ended")
        return "idle" in self.call("sinfo", "--noheader", "--format=%t", check=False)

    def call(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=60, cwd=self.folder
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """The number of a new job."""
        return self.call(
            "sbatch", "--parsable", "--ntasks=1", "--output=/dev/null", *options, f"--wrap={script}"
        )

    def shown(self, job: str, format: str) -> str:
        return self.call("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={format}")

    def wait_for(self, job: str, state: str) -> None:
        try:
            wait_until(
                lambda: self.shown(job, "%T") == state, STATE_SECONDS_MAX, f"job {job} that is {state}"
            )
        except AssertionError as error:
            logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
            raise AssertionError(f"{error}: {self.shown(job, '%T %r')}\n{logs}") from None

    def hooks(self) -> int:
        """How many processes of end.sh there are."""
        found = 0
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += str(self.scripts / "end.sh").encode() in path.read_bytes().split(b"\0")
            except OSError:
                continue
        return found
