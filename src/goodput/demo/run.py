"""The demo: a real training run with planted faults, observed by a real agent and aggregator.

The ranks are processes. One has a slow loader, one is killed by SIGKILL in the middle of a step, and the run is
started again from its last checkpoint after a pause, as by a scheduler.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from goodput.child_processes import Child, ChildError, wait_all
from goodput.demo.peak import ONE_THREAD
from goodput.demo.rank import Job, notes_path
from goodput.demo.view import View

RESTART_SECONDS = 1.5  # the time that a scheduler needs to start the run again
# Bounds that end what hangs; a machine whose cores are busy needs several times what a quiet one does.
READY_SECONDS_MAX = 90.0
OVERTIME_SECONDS_MAX = 180.0
RUN_SECONDS_MAX = 45.0
CHECKPOINT_EVERY = 25
STEPS_MIN = 40
SETTLE_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Options:
    """The planted faults. `kill_at` is a step, "auto" (about the middle) or None."""

    ranks: int
    seconds: float
    slow_rank: int | None
    loader_delay_seconds: float
    kill_at: int | str | None
    keep: bool


@dataclass
class Outcome:
    """The faults as they really happened, the account, and with `keep` the server that is left."""

    planted: dict
    account: dict
    address: str
    server_pid: int
    folder: Path


class DemoError(Exception):
    """The demo cannot continue; the message has the reason and what the process printed."""


class Demo:
    """One demo; `run` leaves nothing behind, except the server and its folder with `keep`."""

    def __init__(self, options: Options):
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="goodput-demo-"))
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.pages = tempfile.mkdtemp(prefix="goodput-demo-", dir=memory)
        self.name = f"demo-{time.strftime('%H%M%S')}-{os.getpid()}"
        # The rank after the slow one, so that the two faults stay separate.
        self.killed_rank = ((options.slow_rank or 0) + 1) % options.ranks
        self.children: list[Child] = []
        self.attempts: list[list[Child]] = []
        self.interrupted = 0  # The signal that came.
        self.starting = False

    def interrupt(self, signal: int, _frame=None) -> None:
        """A signal handler: end everything and exit with status 128 + `signal`.

        Not while a process is being started, which would then be in no list and so never be ended.
        """
        self.interrupted = signal
        if not self.starting:
            self._exit_if_interrupted()

    def _exit_if_interrupted(self) -> None:
        if self.interrupted:
            raise SystemExit(128 + self.interrupted)

    def run(self) -> Outcome:
        """Raises DemoError when a part fails."""
        keep = False
        try:
            ledger = f"sqlite:///{self.folder / 'ledger.db'}"
            server = self._goodput("serve", "--ledger", ledger, leave=self.options.keep)
            address = server.address(READY_SECONDS_MAX)
            intervals = ("--interval", "0.2", "--push-interval", "0.4")
            agent = self._goodput("node", "--aggregator", address, *intervals)
            agent.address(READY_SECONDS_MAX)
            with View(address, self.name) as view:
                self._train(view)
                agent.end(SETTLE_SECONDS_MAX)  # It pushes what is left before it exits.
                account = view.finished(SETTLE_SECONDS_MAX)
            if account is None or account["status"] != "finished":
                raise DemoError(f"the run did not finish in the account:\n{agent.tail()}\n{server.tail()}")
            keep = self.options.keep
            account = {name: part for name, part in account.items() if name not in ("live", "windows")}
            return Outcome(self._planted(), account, address, server.process.pid, self.folder)
        except ChildError as error:
            raise DemoError(str(error)) from error
        finally:
            for child in reversed(self.children):  # Ranks before the agent, the agent before the server.
                if not (keep and child.name == "serve"):
                    child.end()
            shutil.rmtree(self.pages, ignore_errors=True)
            if not keep:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _goodput(self, command: str, *arguments: str, leave: bool = False) -> Child:
        """`goodput serve` or `goodput node` on a free port."""
        return self._start(
            command, ["-m", "goodput", command, "--listen", "127.0.0.1:0", *arguments], {}, leave
        )

    def _start(self, name: str, command: list[str], environ: dict[str, str], leave: bool = False) -> Child:
        environ = {"GOODPUT_DIR": self.pages, "GOODPUT_DISABLE": "", **environ}
        self.starting = True
        try:
            self.children.append(Child(name, [sys.executable, *command], self.folder, environ, leave))
        finally:
            self.starting = False
        self._exit_if_interrupted()
        return self.children[-1]

    def _train(self, view: View) -> None:
        view.note("measuring the peak of one core by a matrix product")
        peak = _measured_peak()
        began = time.time()
        view.note(f"training on {self.options.ranks} ranks")
        self._attempt(view, peak, began, kill=self.options.kill_at is not None)
        killed_step = self._killed_step()
        if killed_step is not None:
            view.note(f"rank {self.killed_rank} was killed in step {killed_step}; the run has failed")
            until = time.time() + RESTART_SECONDS
            while time.time() < until:
                self._poll(view)
                time.sleep(0.05)
            view.note("started again from the last checkpoint")
            self._attempt(view, peak, began, kill=False)
        for child in self.attempts[-1]:
            if child.poll() != 0:
                raise DemoError(f"{child.name} failed with status {child.poll()}:\n{child.tail()}")

    def _attempt(self, view: View, peak: float, began: float, kill: bool) -> None:
        """Start all ranks and wait for their end."""
        options, number = self.options, len(self.attempts) + 1
        at_step = options.kill_at if kill and isinstance(options.kill_at, int) else None
        at_time = began + 0.45 * options.seconds if kill and options.kill_at == "auto" else None
        stop_at = began + options.seconds
        if number > 1:
            stop_at = max(stop_at, time.time() + 0.3 * options.seconds)
        elif at_step is not None:  # A late step prolongs the attempt.
            stop_at = max(stop_at, began + RUN_SECONDS_MAX)
        ranks = []
        for rank in range(options.ranks):
            is_victim = rank == self.killed_rank
            job = Job(
                run=self.name,
                directory=str(self.folder),
                loader_delay_seconds=options.loader_delay_seconds if rank == options.slow_rank else 0.0,
                checkpoint_every=CHECKPOINT_EVERY,
                stop_at=stop_at,
                steps_min=STEPS_MIN,
                kill_at_step=at_step if is_victim else None,
                kill_at_time=at_time if is_victim else None,
                peak_flops_per_second=peak,
            )
            environ = {
                "RANK": rank,
                "WORLD_SIZE": options.ranks,
                "LOCAL_RANK": rank,
                "GOODPUT_ATTEMPT": number,
            }
            environ = ONE_THREAD | {name: str(value) for name, value in environ.items()}
            command = ["-m", "goodput.demo.rank", job.to_json()]
            ranks.append(self._start(f"rank-{number}-{rank}", command, environ))
        self.attempts.append(ranks)
        if not wait_all(ranks, stop_at + OVERTIME_SECONDS_MAX, lambda: self._poll(view)):
            raise DemoError(f"training did not stop in time:\n{ranks[0].tail()}")
        for child in ranks:
            child.end(1.0)

    def _poll(self, view: View) -> None:
        self._exit_if_interrupted()
        view.refresh()

    # -- what really happened, from the ranks' own notes

    def _notes(self, rank: int, attempt: int) -> list[list[str]]:
        path = Path(notes_path(str(self.folder), rank, attempt))
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def _killed_step(self) -> int | None:
        return next((int(line[1]) for line in self._notes(self.killed_rank, 1) if line[0] == "killed"), None)

    def _steps(self, rank: int, attempt: int) -> list[tuple[int, float]]:
        """(step, seconds that the loader slept) of each completed step."""
        return [(int(line[0]), float(line[1])) for line in self._notes(rank, attempt) if line[0] != "killed"]

    def _planted(self) -> dict:
        """The faults as they really happened: sleeps in steps that were not repeated, and the repeated steps."""
        slow, ranks = self.options.slow_rank, range(self.options.ranks)
        restarted = len(self.attempts) == 2
        # The step from which work was repeated.
        first = min((step for rank in ranks for step, _ in self._steps(rank, 2)), default=math.inf)
        slept = 0.0
        if slow is not None:
            kept = [sleep for step, sleep in self._steps(slow, 1) if step < first]
            slept = sum(kept) + sum(sleep for _, sleep in self._steps(slow, 2))
        # From the end of each process to the start of its successor.
        gaps = (
            [after.started_at - before.ended_at for before, after in zip(*self.attempts, strict=False)]
            if restarted
            else []
        )
        return {
            "ranks": self.options.ranks,
            "slow_rank": slow,
            "loader_delay_seconds": self.options.loader_delay_seconds if slow is not None else 0.0,
            "loader_seconds": slept,
            "killed_rank": self.killed_rank if restarted else None,
            "kill_at": self.options.kill_at,
            "kill_step": self._killed_step(),
            "steps_redone": sum(step >= first for rank in ranks for step, _ in self._steps(rank, 1)),
            "down_seconds": sum(gaps) / len(gaps) if gaps else 0.0,
        }


def _measured_peak() -> float:
    command = [sys.executable, "-m", "goodput.demo.peak"]
    done = subprocess.run(
        command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise DemoError(f"cannot measure the peak:\n{done.stderr[-1000:]}")
    return float(done.stdout)
