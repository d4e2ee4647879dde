"""Runs scripts in forks of a process that has imported what they import: PyTorch alone takes 3 s of CPU time.

For scripts that import it before goodput, and whose start no test looks at.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from support.paths import PYTHONPATH, SUPPORT

# Variables that libraries read when they are imported.
IMPORTED_WITH = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class ForkServer:
    """The process that has imported these modules."""

    def __init__(self, *modules: str, flags: tuple[str, ...] = ()):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, *flags, str(SUPPORT / "fork_server.py"), *modules],
            env={**os.environ, **IMPORTED_WITH, "PYTHONPATH": PYTHONPATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def run(self, *processes: tuple[list[str], dict[str, str]], seconds: float, directory=".") -> list[Ended]:
        """Run processes, of each (script and arguments, environment), at the same time until all have ended."""
        with tempfile.TemporaryDirectory() as made:
            outputs = [(Path(made, f"{n}.out"), Path(made, f"{n}.err")) for n in range(len(processes))]
            wanted = [
                {"arguments": [*map(str, arguments)], "environment": environment, "directory": str(directory),
                 "out": str(out), "errors": str(errors)}
                for (arguments, environment), (out, errors) in zip(processes, outputs, strict=True)
            ]  # fmt: skip
            statuses = self._ask({"seconds": seconds, "processes": wanted})
            return [
                Ended(status, out.read_text(errors="replace"), errors.read_text(errors="replace"))
                for status, (out, errors) in zip(statuses, outputs, strict=True)
            ]

    def _ask(self, request: dict) -> list[int]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise AssertionError(f"the fork server ended: {self._log.read()}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()
        self._log.close()


@functools.cache
def server_with(module: str) -> ForkServer:
    """That which has imported this module, and Dynamo, which each optimizer imports."""
    made = ForkServer(module, "torch._dynamo")
    atexit.register(made.close)
    return made
