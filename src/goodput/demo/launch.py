"""Processes of the demo: a server, an agent and ranks, each ended by its own pid whatever happens.

In: command lines. Out: running processes and what they print. How they end, even with the demo, is children.py.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from goodput import child_processes

READY_SECONDS_MAX = 20.0


class DemoError(Exception):
    """The demo cannot go on; the text says why and shows what the process printed."""


class Child(child_processes.Child):
    """A process of this interpreter that may print its address."""

    def __init__(self, name: str, command: list[str], folder: Path, environ: dict, leave: bool = False):
        super().__init__(name, [sys.executable, *command], folder, environ, leave)

    def address(self) -> str:
        """The http:// address it prints when it is ready."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self.poll() is None:
            found = re.search(r"http://[^\s/]+", self.log.read_text(errors="replace"))
            if found:
                return found.group()
            time.sleep(0.02)
        raise DemoError(f"{self.name} did not start:\n{self.tail()}")


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
