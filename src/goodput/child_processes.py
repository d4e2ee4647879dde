"""Child processes of a command, each with a log file.

A child is killed when its parent dies (PR_SET_PDEATHSIG), even by SIGKILL. It leads a session of its own, so Ctrl-C in
the terminal reaches the parent alone.

    child = Child("serve", [sys.executable, "-m", "goodput", "serve"], folder)
    address = child.address(20.0)
    ...
    child.end()
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_TAIL_LINES = 12
_TAIL_BYTES = 16_384


class ChildError(Exception):
    """A child process is not ready; the message ends with what it printed."""


class Child:
    """One process and its log file. Raises OSError if it cannot be started."""

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        environ: Mapping[str, str] | None = None,
        leave: bool = False,
    ):
        self.name, self.log = name, Path(folder) / f"{name}.log"
        self.started_at = time.time()
        self.ended_at: float | None = None
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
                preexec_fn=None if leave else _die_with_parent,
            )

    def poll(self) -> int | None:
        """The exit status, None while it runs; records when its end was first seen."""
        status = self.process.poll()
        if status is not None and self.ended_at is None:
            self.ended_at = time.time()
        return status

    def tail(self) -> str:
        """The last lines of its output."""
        with open(self.log, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log) - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:])

    def address(self, seconds: float) -> str:
        """The http:// address that it prints when it is ready. Raises ChildError after so many seconds, or if it ends."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.poll() is None:
            found = re.search(r"http://[^\s/,]+(?=[\s/,])", self.log.read_text(errors="replace"))
            if found:
                return found.group()
            time.sleep(0.02)
        raise ChildError(f"{self.name} did not start:\n{self.tail()}")

    def end(self, seconds: float = 5.0) -> None:
        """SIGTERM, then SIGKILL if it is still alive after so many seconds."""
        end_all([self], seconds)


def end_all(children: list[Child], seconds: float = 5.0) -> None:
    """SIGTERM to all at once, SIGKILL to those still alive after so many seconds."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.process.terminate()
    deadline = time.monotonic() + seconds
    for child in running:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        child.poll()


def wait_all(
    children: list[Child], deadline: float, poll: Callable[[], None], grace_seconds: float = 2.0
) -> bool:
    """Wait until all children have ended; `poll` is called meanwhile. False if they have not by `deadline` (unix seconds).

    When one fails the others get `grace_seconds` to notice, and may still be running on return.
    """
    while time.time() < deadline:
        statuses = [child.poll() for child in children]
        if all(status is not None for status in statuses):
            return True
        if any(statuses):
            grace_end = time.time() + grace_seconds
            while time.time() < grace_end and any(child.poll() is None for child in children):
                time.sleep(0.005)
            return True
        poll()
        time.sleep(0.02)
    return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
