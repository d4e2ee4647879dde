"""Runs a program bare, and unchanged under `goodput run`."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from support.paths import PYTHONPATH, SUPPORT
from support.programs.comparison import Measured

from goodput.account import Run, compute, document
from goodput.account.account import Account
from goodput.account.states import INDEX
from goodput.causes import explain
from goodput.sdk.reports.local_accounts import runs_in

PROGRAMS = SUPPORT / "programs"
SCRIPTS = Path(sysconfig.get_path("scripts"))
COMMAND = SCRIPTS / "goodput"
TORCHRUN = (str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", "2", "--max-restarts")
# How often each program that torchrun launches is started again.
RESTARTS = {"ranks/fsdp2": 0, "ranks/resume": 1}
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

    def leading(self) -> dict:
        """The cause that the text names first."""
        first = self.document["advice_order"][0]
        return next(cause for cause in self.document["causes"] if cause["state"] == first)


def run_measured(name: str, directory: Path) -> Trained:
    """Run a program under `goodput run`, with the path of its result as its argument."""
    launcher = (*TORCHRUN, str(RESTARTS[name])) if name in RESTARTS else ()
    done = subprocess.run(
        [str(COMMAND), "run", *launcher, str(PROGRAMS / f"{name}.py"), str(directory / "found.json")],
        env={**os.environ, **ENVIRONMENT, "GOODPUT_DIR": str(directory / "pages")},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Trained(directory, done.stderr)


class Bare:
    """A process that runs programs without goodput (bare.py)."""

    def __init__(self, directory: Path):
        self.log = (directory / "bare.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "bare.py")],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def run(self, name: str, directory: Path) -> Trained:
        assert self.process.stdin and self.process.stdout
        ranks, restarts = 1 + (name in RESTARTS), RESTARTS.get(name, 0)
        self.process.stdin.write(f"{PROGRAMS / name}.py\t{directory / 'found.json'}\t{ranks}\t{restarts}\n")
        self.process.stdin.flush()
        status = self.process.stdout.readline()
        if status != "0\n":
            self.log.seek(0)
            raise AssertionError(f"{name}: exit status {status}: {self.log.read()}")
        return Trained(directory, "")

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(TIMEOUT_SECONDS)
        self.log.close()
