"""Runs a program bare, and unchanged under `goodput run`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from support.forks import Ended, server_with
from support.paths import PYTHONPATH, SUPPORT
from support.programs.comparison import Measured
from support.servers.servers import free_ports

from goodput.account import Run, compute, document
from goodput.account.account import Account
from goodput.account.states import INDEX
from goodput.causes import explain
from goodput.cli.run import environment
from goodput.sdk.reports.local_accounts import runs_in

PROGRAMS = SUPPORT / "programs"
SCRIPTS = Path(sysconfig.get_path("scripts"))
COMMAND = SCRIPTS / "goodput"
TORCHRUN = (str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", "2", "--max-restarts")
# How often each program that torchrun launches is started again.
RESTARTS = {"ranks/fsdp2": 0, "ranks/resume": 1}
# Programs that `goodput run` itself starts, as those that start processes; others run in forks, with the environment
# that it makes, since importing PyTorch or a trainer takes several times as long as the training.
STARTED = (
    "loops/mnist",
    "ranks/ddp_spawn",
    "ranks/hogwild",
    "ranks/resume",
)
# Modules that a program's fork has imported, if not PyTorch alone.
IMPORTED = {"trainers/lightning_trainer": "lightning", "trainers/litgpt_fabric": "lightning"}
# Ends a program that hangs, also where other processes keep every core busy; below pytest's own limit.
TIMEOUT_SECONDS = 300
ENVIRONMENT = {
    "PYTHONPATH": PYTHONPATH,
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass
class Trained:
    """A program that has run; `printed` is its standard error."""

    directory: Path
    printed: str

    @cached_property
    def measured(self) -> list[Measured]:
        """The stopwatch of each rank."""
        return [Measured.read(path) for path in sorted(self.directory.glob("found*.json"))]

    @property
    def core_wait_ns(self) -> int:
        """How long the ranks' training threads had no core; ranks that wait for each other share all of it."""
        return sum(rank.core_wait for rank in self.measured)

    @cached_property
    def run(self) -> Run:
        runs, errors = runs_in(str(self.directory / "pages"), time.perf_counter_ns())
        assert errors == [] and len(runs) == 1, (errors, [run.name for run in runs])
        return runs[0]

    @cached_property
    def account(self) -> Account:
        return compute(self.run, time.time_ns())

    @cached_property
    def document(self) -> dict:
        return dict(document(self.account, explain(self.account)))

    def states(self, rank: int) -> dict[str, int]:
        """Nanoseconds."""
        found = self.account.ranks[rank].states
        return {state: found[index] for state, index in INDEX.items()}

    def assert_leads(self, state: str, advice: str, when_busy: str = "") -> None:
        """A cause is named first, with this advice.

        Where ranks waited for cores, the cause takes by that much less than the first, and may have the advice `when_busy`.
        """
        causes = {cause["state"]: cause for cause in self.document["causes"]}
        first = causes[self.document["advice_order"][0]]
        missing, waited = first["gpu_seconds"] - causes[state]["gpu_seconds"], self.core_wait_ns / 1e9
        assert first["state"] == state or missing <= waited, (waited, causes)
        if when_busy and waited > causes[state]["gpu_seconds"] / 2:
            advice = f"{advice}|{when_busy}"
        assert re.search(advice, causes[state]["advice"]), (waited, causes[state])


def run_measured(name: str, directory: Path) -> Trained:
    """Run a program under `goodput run`, with the path of its result as its argument."""
    environ = {**os.environ, **ENVIRONMENT, "GOODPUT_DIR": str(directory / "pages")}
    if name in STARTED:
        launcher = (*TORCHRUN, str(RESTARTS[name])) if name in RESTARTS else ()
        done = subprocess.run(
            [str(COMMAND), "run", *launcher, str(PROGRAMS / f"{name}.py"), str(directory / "found.json")],
            env=environ,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return Trained(directory, done.stderr)
    environ = environment(environ, argparse.Namespace(name=None, directory=None, quiet=False))
    ended = run_forks(name, directory, environ, "-m", "goodput.auto")
    assert not any(process.returncode for process in ended), ended
    return Trained(directory, "".join(process.stderr for process in ended))


def run_bare(name: str, directory: Path) -> Trained:
    """Run a program without goodput, and again after its ranks failed."""
    environ, ended = {**os.environ, **ENVIRONMENT}, []
    for attempt in range(RESTARTS.get(name, 0) + 1):
        started = {"TORCHELASTIC_RESTART_COUNT": str(attempt), "KERNELS": "0"}
        ended = run_forks(name, directory, {**environ, **started})
        if not any(process.returncode for process in ended):
            break
    assert not any(process.returncode for process in ended), ended
    return Trained(directory, "")


def run_forks(name: str, directory: Path, environ: dict[str, str], *before: str) -> list[Ended]:
    """Run a program in forks of a process that has imported what it imports, any ranks with what torchrun sets."""
    environments = [environ]
    if name in RESTARTS:
        launched = {
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free_ports(1)[0]),
            "TORCHELASTIC_RUN_ID": name.replace("/", "-"),
            "WORLD_SIZE": "2",
        }
        environments = [{**environ, **launched, "RANK": str(rank)} for rank in range(2)]
    command = [*before, f"{PROGRAMS / name}.py", str(directory / "found.json")]
    processes = [(command, each) for each in environments]
    server = server_with(IMPORTED.get(name, "torch"))
    return server.run(*processes, seconds=TIMEOUT_SECONDS, directory=str(directory))
