"""Processes that a test starts, with a log each, ended by their pids."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.servers import servers

URL = re.compile(r"http://[\d.:]+")


class ChildProcesses:
    """Python processes with the same environment; their logs lie in `folder`."""

    def __init__(self, folder: Path, environ: dict[str, str]):
        self.folder, self.environ = folder, environ
        self.children: list[subprocess.Popen] = []

    def start(
        self, name: str, *arguments: str, prefix: Sequence[str] = (), **environ: str
    ) -> subprocess.Popen:
        """Python with these arguments, run by `prefix` if there is one."""
        with open(self.folder / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                [*prefix, sys.executable, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environ, **environ},
            )
        self.children.append(child)
        return child

    def goodput(self, command: str, options: str) -> subprocess.Popen:
        return self.start(command, "-m", "goodput", command, *options.split())

    def address(self, name: str) -> str:
        """The address that a server logs when it is ready."""
        log = self.folder / f"{name}.log"
        return servers.wait_until(lambda: URL.search(log.read_text()), 60, f"{name} to start").group()

    def end(self) -> None:
        for child in reversed(self.children):
            child.kill()
            child.wait()
