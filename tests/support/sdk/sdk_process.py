"""Run a piece of training code in a process of its own, on either implementation of the SDK's hot path.

The process has the standard library and goodput, nothing else (`-S`), and of the environment only what is given.
`emit(x)` in the code adds x, as JSON, to the outcome.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from support.forks import ForkServer
from support.paths import TESTS
from support.plain_package import plain_package

import goodput
from goodput.rank_page.reader import Reader, Snapshot

SOURCE = os.path.dirname(goodput.__path__[0])
SECONDS_MAX = 60
PREAMBLE = """\
import json, os, signal, sys, threading, time
import goodput
def emit(value):
    os.write(1, (json.dumps(value) + "\\n").encode())
def spin(microseconds):
    until = time.perf_counter_ns() + 1000 * microseconds
    while time.perf_counter_ns() < until:
        pass
def work():
    with goodput.phase("forward"):
        spin(20)
def snapshot():
    from goodput.rank_page.reader import Reader
    writer = goodput._session.writer
    return Reader(writer.path or "private", writer.fd).snapshot()
"""


@dataclass
class Outcome:
    directory: Path
    status: int
    emitted: list
    errors: str

    def paths(self) -> list[Path]:
        return sorted(path for path in self.directory.glob("*.page") if not path.name.startswith("."))

    def snapshots(self) -> list[Snapshot]:
        """The pages' snapshots, in the order of rank and attempt."""
        found = []
        for path in self.paths():
            with Reader(str(path)) as reader:
                found.append(reader.snapshot())
        return sorted(found, key=lambda s: (s.identity["rank"], s.identity["attempt"]))

    def snapshot(self) -> Snapshot:
        """That of the only page."""
        (only,) = self.snapshots()
        return only

    def count(self, slot: int) -> int:
        """How many durations the only page has in a histogram."""
        (path,) = self.paths()
        with Reader(str(path)) as reader:
            return sum(sum(counts) for _, counts in reader.histogram_blocks(slot))

    def messages(self) -> list[str]:
        """goodput's lines on standard error."""
        return [line for line in self.errors.splitlines() if line.startswith("goodput: ")]


def command(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", PREAMBLE + textwrap.dedent(code)]


def environment(directory, pure: bool, given: dict) -> dict:
    paths = [plain_package() if pure else SOURCE, str(TESTS)]
    found = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(paths),
        "GOODPUT_DIR": str(directory),
        "GOODPUT_RUNS": "0",
    }
    return {name: value for name, value in {**found, **given}.items() if value is not None}


@functools.cache
def _server() -> ForkServer:
    made = ForkServer("json", "signal", "threading", flags=("-S",))
    atexit.register(made.close)
    return made


def run(code: str, directory: Path, pure: bool, **given) -> Outcome:
    """Run code to its end; `given` are environment variables, None for one to be left out."""
    (done,) = _server().run((command(code)[2:], environment(directory, pure, given)), seconds=SECONDS_MAX)
    emitted = [json.loads(line) for line in done.stdout.splitlines()]
    return Outcome(directory, done.returncode, emitted, done.stderr)
