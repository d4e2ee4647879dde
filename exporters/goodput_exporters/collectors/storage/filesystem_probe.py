"""How full file systems are, and whether they answer at all, without ever waiting for one that does not.

In: paths. Out: for each the last `Answer`, or `Failed` where it gave an error or did not answer within
`limit_seconds`. The question is put by a process of its own (probe_worker.py), because a thread that a dead NFS
or Lustre server blocks can keep a whole process from ending. One process asks for all paths that are due; a path
that hangs has at most one such process, and is not asked again before that has ended.

Guarantee: `look` takes at most `first_wait_seconds` when a path is new and `wait_seconds` otherwise; what comes
later is in the next look. Cost: one start of Python, about 10 ms of one core, in `every_seconds`. Starting that
process needs the file system that Python lies on. It does not know which paths matter.

    asked = FileSystems(); asked.look(["/data"])["/data"].available_bytes
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from goodput_exporters.collector import ParseError, parse_count

CHILD = os.path.join(os.path.dirname(__file__), "probe_worker.py")
LINE_BYTES_MAX = 512
END_SECONDS_MAX = 0.05


class Answer(NamedTuple):
    """`device` is major:minor. `inodes` is 0 where the file system has no limit of them."""

    seconds: float
    size_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int
    device: str


class Failed(NamedTuple):
    """`errno` is None where there was no answer in time."""

    errno: int | None


class _Worker:
    """A process that asks, what it still owes, and what it has said of a line so far."""

    def __init__(self, process: subprocess.Popen, paths: list[str], started: float):
        self.process, self.paths, self.started = process, paths, started
        self.owed = set(paths)
        self.text = b""
        self.fd = process.stdout.fileno()
        os.set_blocking(self.fd, False)


class FileSystems:
    """`start` begins the process for a list of paths; the tests give their own."""

    def __init__(
        self,
        *,
        start: Callable[[list[str]], subprocess.Popen] | None = None,
        every_seconds: float = 10.0,
        limit_seconds: float = 5.0,
        first_wait_seconds: float = 1.0,
        wait_seconds: float = 0.05,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._start = start or _start
        self._every, self._limit = every_seconds, limit_seconds
        self._first_wait, self._wait = first_wait_seconds, wait_seconds
        self._monotonic = monotonic
        self._workers: list[_Worker] = []
        self._asked: dict[str, float] = {}
        self._answers: dict[str, Answer | Failed] = {}
        self.problems: list[str] = []  # of the last look, with the asking itself

    def look(self, paths: list[str]) -> dict[str, Answer | Failed]:
        """The last answer of each path; one that was asked only now may have none yet."""
        self.problems = []
        for path in [path for path in self._asked if path not in paths]:
            self._asked.pop(path)
            self._answers.pop(path, None)
        self._read(0.0)
        due = self._due(paths)
        if due:
            self._ask(due)
            new = any(path not in self._answers for path in due)
            self._read(self._first_wait if new else self._wait)
        self._give_up()
        return {path: self._answers[path] for path in paths if path in self._answers}

    def close(self) -> None:
        """End what still asks; what cannot be ended is left to the kernel."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.stdout.close()
        self._workers.clear()

    def _due(self, paths: list[str]) -> list[str]:
        now = self._monotonic()
        busy = {path for worker in self._workers for path in worker.owed}
        return [
            path
            for path in paths
            if path not in busy and now - self._asked.get(path, -self._every) >= self._every
        ]

    def _ask(self, paths: list[str]) -> None:
        now = self._monotonic()
        self._asked.update(dict.fromkeys(paths, now))
        try:
            self._workers.append(_Worker(self._start(paths), paths, now))
        except (OSError, ValueError) as error:  # ValueError: a NUL in a path.
            self.problems.append(f"statvfs of {paths[:4]} cannot be asked: {error}")

    def _read(self, seconds: float) -> None:
        """Take what the processes say, for so long, or until none of them owes anything in time."""
        deadline = time.monotonic() + seconds
        while True:
            waited_for = [worker for worker in self._workers if worker.fd >= 0]
            # One that is overdue must not cost every look the whole wait.
            in_time = any(not self._is_overdue(worker) for worker in waited_for)
            left = max(0.0, deadline - time.monotonic()) if in_time else 0.0
            poll = select.poll()
            for worker in waited_for:
                poll.register(worker.fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(left * 1000)} if waited_for else set()
            for worker in waited_for:
                if worker.fd in ready:
                    self._take(worker)
            self._bury()
            if not left:
                return

    def _take(self, worker: _Worker) -> None:
        try:
            part = os.read(worker.fd, 1 << 16)
        except BlockingIOError:
            return
        if not part:
            worker.fd = -1
            worker.process.stdout.close()
            try:
                worker.process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                pass  # A later look finds it.
            return
        *lines, worker.text = (worker.text + part).split(b"\n")
        worker.text = worker.text[-LINE_BYTES_MAX:]
        for line in lines:
            try:
                number, answer = parse_answer(line.decode("ascii", "replace"))
                path = worker.paths[number]
            except (ParseError, IndexError) as error:
                self.problems.append(f"statvfs: {error}")
                continue
            worker.owed.discard(path)
            if path in self._asked:
                self._answers[path] = answer

    def _bury(self) -> None:
        """Let go of processes that have ended."""
        for worker in list(self._workers):
            if worker.fd >= 0 or worker.process.poll() is None:
                continue
            self._workers.remove(worker)
            if worker.owed and not self._is_overdue(worker):
                status = worker.process.returncode
                self.problems.append(f"statvfs of {sorted(worker.owed)[:4]}: the process ended with {status}")

    def _give_up(self) -> None:
        """What did not answer in time is down; its process is told to end, which it may not be able to."""
        for worker in self._workers:
            if worker.owed and self._is_overdue(worker):
                worker.process.kill()
                for path in worker.owed & self._asked.keys():
                    self._answers[path] = Failed(None)

    def _is_overdue(self, worker: _Worker) -> bool:
        return self._monotonic() - worker.started >= self._limit


def _start(paths: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", CHILD, *paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def parse_answer(line: str) -> tuple[int, Answer | Failed]:
    """The number of a path and what was said of it. Raises ParseError."""
    words = line.split(" ")
    if len(words) == 3 and words[1] == "error":
        return parse_count(words[0]), Failed(parse_count(words[2]))
    if len(words) != 9:
        raise ParseError(f"no answer in {line[:60]!r}")
    try:
        seconds = float(words[1])
    except ValueError:
        raise ParseError(f"no time in {line[:60]!r}") from None
    unit, blocks, available, inodes, free, major, minor = map(parse_count, words[2:])
    sizes = blocks * unit, available * unit, inodes, free
    return parse_count(words[0]), Answer(seconds, *sizes, f"{major}:{minor}")
