"""Runs scripts in forks of a process that has imported what they import: PyTorch alone takes 3 s of CPU time.

For scripts that import it before goodput, and whose start no test looks at.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, TextIO

from support.paths import PYTHONPATH, SUPPORT

# Variables that libraries read when they are imported.
IMPORTED_WITH = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


# The variable with the folder of the servers' sockets.
FOLDER = "GOODPUT_TEST_FORKS"
START_SECONDS_MAX = 300


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class ForkServer:
    """A connection to the process that has imported these modules, which the first to ask for it starts.

    All processes of a test run share it; see `pytest_configure`.
    """

    def __init__(self, *modules: str, flags: tuple[str, ...] = ()):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process: subprocess.Popen | None = None
        address = Path(_folder(), "-".join(modules))
        command = [sys.executable, *flags, str(SUPPORT / "fork_server.py"), str(address), *modules]
        self._connection = self._connect(str(address), command)

    def _connect(self, address: str, command: list[str]) -> TextIO:
        """A connection whose greeting was read."""
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
                connection.connect(address)
                connection.settimeout(START_SECONDS_MAX)
                file = connection.makefile("rw")
                if file.readline():
                    connection.settimeout(None)
                    return file
            # None serves there yet, or its last client has just gone.
            if self._process is None or self._process.poll() is not None:
                environ = {**os.environ, **IMPORTED_WITH, "PYTHONPATH": PYTHONPATH}
                self._process = subprocess.Popen(
                    command, env=environ, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
                )
            time.sleep(0.01)
        raise AssertionError(f"the fork server did not start: {self._printed()}")

    def run(self, *processes: tuple[list[str], dict[str, str]], seconds: float, directory=".") -> list[Ended]:
        """Run processes, of each (script and arguments, environment), at the same time until all have ended."""
        with tempfile.TemporaryDirectory() as made:
            outputs = [(Path(made, f"{n}.out"), Path(made, f"{n}.err")) for n in range(len(processes))]
            wanted = [
                {"arguments": [*map(str, arguments)], "environment": environment,
                 "directory": os.path.abspath(directory), "out": str(out), "errors": str(errors)}
                for (arguments, environment), (out, errors) in zip(processes, outputs, strict=True)
            ]  # fmt: skip
            statuses = self._ask({"seconds": seconds, "processes": wanted})
            return [
                Ended(status, out.read_text(errors="replace"), errors.read_text(errors="replace"))
                for status, (out, errors) in zip(statuses, outputs, strict=True)
            ]

    def _ask(self, request: dict) -> list[int]:
        self._connection.write(json.dumps(request) + "\n")
        self._connection.flush()
        answer = self._connection.readline()
        assert answer, f"the fork server ended: {self._printed()}"
        return json.loads(answer)

    def _printed(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        """The server ends with its last connection."""
        self._connection.close()
        self._log.close()


def _folder() -> str:
    """That of the test run; of a benchmark, which is none, its own."""
    if FOLDER not in os.environ:
        made = tempfile.TemporaryDirectory(prefix="goodput-forks-")
        atexit.register(made.cleanup)
        os.environ[FOLDER] = made.name
    return os.environ[FOLDER]


@functools.cache
def server_with(module: str) -> ForkServer:
    """That which has imported this module, and Dynamo, which each optimizer imports."""
    made = ForkServer(module, "torch._dynamo")
    atexit.register(made.close)
    return made
