"""Processes of the demo: a server, an agent and ranks, each ended by its own pid whatever happens.

In: command lines. Out: running processes and what they print. A child dies with the demo (PR_SET_PDEATHSIG), so
that even a SIGKILL leaves nothing running.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

READY_SECONDS_MAX = 20.0
_PR_SET_PDEATHSIG = 1


class DemoError(Exception):
    """The demo cannot go on; the text says why and shows what the process printed."""


class Child:
    """One process, its log file and how to end it."""

    def __init__(self, name: str, command: list[str], folder: Path, environ: dict, leave: bool = False):
        self.name, self.log = name, folder / f"{name}.log"
        self.started_at = time.time()
        self.ended_at: float | None = None
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
                start_new_session=True,
                preexec_fn=None if leave else _die_with_parent,
            )

    def poll(self) -> int | None:
        """The exit status, None while it runs; notes when the end was first seen."""
        status = self.process.poll()
        if status is not None and self.ended_at is None:
            self.ended_at = time.time()
        return status

    def address(self) -> str:
        """The http:// address it prints when it is ready."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self.poll() is None:
            found = re.search(r"http://[^\s/]+", self.log.read_text(errors="replace"))
            if found:
                return found.group()
            time.sleep(0.02)
        raise DemoError(f"{self.name} did not start:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])

    def end(self, seconds: float = 5.0) -> None:
        """SIGTERM, and SIGKILL if that was not enough."""
        if self.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.poll()


def wait_all(children: list[Child], each_look, deadline: float) -> bool:
    """Wait until all have ended or one failed; calls `each_look` meanwhile. False when the time is up."""
    while time.time() < deadline:
        statuses = [child.poll() for child in children]
        if all(status is not None for status in statuses):
            return True
        if any(statuses):  # One failed: its peers notice, and get a moment to.
            grace = time.time() + 2.0
            while time.time() < grace and any(child.poll() is None for child in children):
                time.sleep(0.005)
            return True
        each_look()
        time.sleep(0.02)
    return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
