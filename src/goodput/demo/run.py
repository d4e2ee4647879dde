"""The demo: a real training run with planted faults, observed by a real agent and aggregator.

The ranks are processes. One has a slow loader, one is killed by SIGKILL in the middle of a step, and the run is
started again from its last checkpoint after a pause, as by a scheduler.
"""

from __future__ import annotations

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
READY_SECONDS_MAX = 20.0
RUN_SECONDS_MAX = 45.0
CHECKPOINT_EVERY = 25
STEPS_MIN = 40
SETTLE_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class Options:
    """The planted faults. `kill_at` is a step, "auto" (about the middle) or None."""

    ranks: int = 4
    seconds: float = 20.0
    slow_rank: int | None = 2
    loader_delay_seconds: float = 0.02
    kill_at: int | str | None = "auto"
    keep: bool = False


@dataclass
class Outcome:
    planted: dict
    account: dict
    address: str | None = None
    server_pid: int | None = None
    folder: Path | None = None


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
        self.children: list[Child] = []
        self.attempts: list[list[Child]] = []
        self.interrupted = False

    def interrupt(self, *_) -> None:
        """A signal handler: end everything and exit with status 143.

        The interpreter drops an exception that is raised while a process is being forked; hence the flag.
        """
        self.interrupted = True
        raise SystemExit(143)

    def run(self) -> Outcome:
        """Raises DemoError when a part fails."""
        keep = False
        try:
            server = self._child(
                "serve", ["-m", "goodput", "serve", *self._serve_options()], self.options.keep
            )
            address = server.address(READY_SECONDS_MAX)
            agent = self._child("node", ["-m", "goodput", "node", *self._node_options(address)])
            agent.address(READY_SECONDS_MAX)
            with View(address, self.name) as view:
                self._train(view)
                agent.end()  # It pushes what is left before it exits.
                account = view.finished(SETTLE_SECONDS_MAX)
            if account is None or account["status"] != "finished":
                raise DemoError(f"the run did not finish in the account:\n{agent.tail()}\n{server.tail()}")
            keep = self.options.keep
            outcome = Outcome(self._planted(account), _without_live(account))
            if keep:
                outcome.address, outcome.server_pid, outcome.folder = address, server.process.pid, self.folder
            return outcome
        except ChildError as error:
            raise DemoError(str(error)) from error
        finally:
            for child in reversed(self.children):  # Ranks before the agent, the agent before the server.
                if not (keep and child.name == "serve"):
                    child.end()
            shutil.rmtree(self.pages, ignore_errors=True)
            if not keep:
                shutil.rmtree(self.folder, ignore_errors=True)

    # -- processes

    def _child(self, name: str, command: list[str], leave: bool = False, **environ: str) -> Child:
        environ = {"GOODPUT_DIR": self.pages, "GOODPUT_DISABLE": "", **environ}
        child = Child(name, [sys.executable, *command], self.folder, environ, leave)
        self.children.append(child)
        return child

    def _serve_options(self) -> list[str]:
        return ["--listen", "127.0.0.1:0", "--ledger", f"sqlite:///{self.folder / 'ledger.db'}"]

    def _node_options(self, address: str) -> list[str]:
        return f"--listen 127.0.0.1:0 --aggregator {address} --interval 0.2 --push-interval 0.4".split()

    def _train(self, view: View) -> None:
        view.note("measuring the peak of one core by a matrix product")
        peak = _measured_peak()
        began = time.time()
        kill = self.options.kill_at is not None
        view.note(f"training on {self.options.ranks} ranks")
        self._attempt(view, peak, 1, began, kill)
        if not kill or self._killed_step() is None:
            self._expect_success()
            return
        view.note(f"rank {self._killed_rank()} was killed in step {self._killed_step()}; the run is down")
        until = time.time() + RESTART_SECONDS
        while time.time() < until:
            self._poll(view)
            time.sleep(0.05)
        view.note("started again from the last checkpoint")
        self._attempt(view, peak, 2, began, kill=False)
        self._expect_success()

    def _attempt(self, view: View, peak: float, number: int, began: float, kill: bool) -> None:
        options, now = self.options, time.time()
        at_step = options.kill_at if kill and isinstance(options.kill_at, int) else None
        at_time = began + 0.45 * options.seconds if kill and options.kill_at == "auto" else None
        # A late kill step prolongs the first attempt; the second one gets at least 0.3 of the time.
        stop_at = (
            began + options.seconds
            if number == 1
            else max(began + options.seconds, now + 0.3 * options.seconds)
        )
        if at_step is not None:
            stop_at = max(stop_at, began + RUN_SECONDS_MAX)
        ranks = []
        for rank in range(options.ranks):
            victim = rank == self._killed_rank()
            job = Job(
                run=self.name,
                directory=str(self.folder),
                loader_delay_seconds=options.loader_delay_seconds if rank == options.slow_rank else 0.0,
                checkpoint_every=CHECKPOINT_EVERY,
                stop_at=stop_at,
                steps_min=STEPS_MIN,
                kill_at_step=at_step if victim else None,
                kill_at_time=at_time if victim else None,
                peak_flops_per_second=peak,
            )
            environ = {
                "RANK": rank,
                "WORLD_SIZE": options.ranks,
                "LOCAL_RANK": rank,
                "GOODPUT_ATTEMPT": number,
            }
            command = ["-m", "goodput.demo.rank", job.to_json()]
            environ = {**ONE_THREAD, **{name: str(value) for name, value in environ.items()}}
            ranks.append(self._child(f"rank-{number}-{rank}", command, False, **environ))
        self.attempts.append(ranks)
        if not wait_all(ranks, stop_at + 30.0, lambda: self._poll(view)):
            raise DemoError(f"training did not stop in time:\n{ranks[0].tail()}")
        for child in ranks:
            child.end(1.0)

    def _poll(self, view: View) -> None:
        if self.interrupted:
            raise SystemExit(143)
        view.refresh()

    def _expect_success(self) -> None:
        for child in self.attempts[-1]:
            if child.poll() != 0:
                raise DemoError(f"{child.name} failed with status {child.poll()}:\n{child.tail()}")

    # -- what really happened, from the ranks' own notes

    def _killed_rank(self) -> int:
        """The one after the slow rank, so that the two faults stay separate."""
        return ((self.options.slow_rank or 0) + 1) % self.options.ranks

    def _killed_step(self) -> int | None:
        for words in self._notes(self._killed_rank(), 1):
            if words[0] == "killed":
                return int(words[1])
        return None

    def _notes(self, rank: int, attempt: int) -> list[list[str]]:
        path = Path(notes_path(str(self.folder), rank, attempt))
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def _steps(self, rank: int, attempt: int) -> list[tuple[int, float]]:
        return [
            (int(step), float(slept))
            for step, slept in (w for w in self._notes(rank, attempt) if len(w) == 2)
        ]

    def _planted(self, account: dict) -> dict:
        """The faults as they really happened: sleeps in steps that were not repeated, and the repeated steps."""
        slow, ranks = self.options.slow_rank, range(self.options.ranks)
        restarted = len(self.attempts) == 2
        first = min((s for r in ranks for s, _ in self._steps(r, 2)), default=None) if restarted else None
        kept = lambda attempt, step: attempt == len(self.attempts) or step < first  # noqa: E731
        redone = [s for r in ranks for s, _ in self._steps(r, 1) if first is not None and s >= first]
        slept = 0.0
        if slow is not None:
            for attempt in range(1, len(self.attempts) + 1):
                slept += sum(sleep for step, sleep in self._steps(slow, attempt) if kept(attempt, step))
        return {
            "ranks": self.options.ranks,
            "slow_rank": slow,
            "loader_delay_seconds": self.options.loader_delay_seconds if slow is not None else 0.0,
            "loader_seconds": slept,
            "killed_rank": self._killed_rank() if restarted else None,
            "kill_at": self.options.kill_at,
            "kill_step": self._killed_step(),
            "steps_redone": len(redone),
            "down_seconds": self._down_seconds() if restarted else 0.0,
        }

    def _down_seconds(self) -> float:
        """Mean over ranks of the time from a process's end to its successor's start."""
        pairs = zip(*self.attempts, strict=True)
        gaps = [after.started_at - before.ended_at for before, after in pairs]
        return sum(gaps) / len(gaps)


def _measured_peak() -> float:
    code = "from goodput.demo.peak import *; print(measured_peak_flops_per_second())"
    environ = {**os.environ, **ONE_THREAD}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise DemoError(f"cannot measure the peak:\n{done.stderr[-1000:]}")
    return float(done.stdout)


def _without_live(document: dict) -> dict:
    return {k: v for k, v in document.items() if k not in ("live", "windows")}
