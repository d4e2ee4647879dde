"""Capacity and availability of file systems, without waiting for one that does not answer.

statvfs is called in a separate process (probe_worker.py), because a thread blocked by a dead NFS or Lustre server
can keep a whole process from ending. One process probes all paths that are due; a path that hangs has at most one
process, and is not probed again before that has ended.

`poll` takes at most `first_wait_seconds` with a new path, else `wait_seconds`; later results come with the next
poll. Cost: one start of Python, about 10 ms of one core, every `every_seconds`.

    probe = FilesystemProbe(); probe.poll(["/data"])["/data"].available_bytes
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from goodput_exporters.collector import ParseError
from goodput_exporters.system.files import parse_count

WORKER_FILE = os.path.join(os.path.dirname(__file__), "probe_worker.py")
LINE_BYTES_MAX = 512


class FilesystemUsage(NamedTuple):
    """`seconds` is how long the call took, `device` major:minor, `inodes` 0 where they are not limited."""

    seconds: float
    size_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int
    device: str


class ProbeFailure(NamedTuple):
    """`errno` is None where there was no answer in time."""

    errno: int | None


class _Worker:
    """A running probe process, its outstanding paths and its incomplete output line."""

    def __init__(self, process: subprocess.Popen, paths: list[str], started: float):
        assert process.stdout is not None  # It was started with a pipe.
        self.process, self.paths, self.started = process, paths, started
        self.stdout = process.stdout
        self.outstanding = set(paths)
        self.text = b""


class FilesystemProbe:
    """`start` starts the process for a list of paths."""

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
        self._probed_at: dict[str, float] = {}
        self._results: dict[str, FilesystemUsage | ProbeFailure] = {}
        self.problems: list[str] = []  # of the last poll, with the probing itself

    def poll(self, paths: list[str]) -> dict[str, FilesystemUsage | ProbeFailure]:
        """The last result of each path; a new path may have none yet."""
        self.problems = []
        for path in [path for path in self._probed_at if path not in paths]:
            self._probed_at.pop(path)
            self._results.pop(path, None)
        self._read(0.0)
        due = self._due(paths)
        if due:
            self._start_worker(due)
            is_new = any(path not in self._results for path in due)
            self._read(self._first_wait if is_new else self._wait)
        self._fail_overdue()
        return {path: self._results[path] for path in paths if path in self._results}

    def close(self) -> None:
        """Kill the running processes without waiting for them."""
        for worker in self._workers:
            worker.process.kill()
            worker.stdout.close()
        self._workers.clear()

    def _due(self, paths: list[str]) -> list[str]:
        now = self._monotonic()
        busy = {path for worker in self._workers for path in worker.outstanding}
        return [
            path
            for path in paths
            if path not in busy and now - self._probed_at.get(path, -self._every) >= self._every
        ]

    def _start_worker(self, paths: list[str]) -> None:
        now = self._monotonic()
        self._probed_at.update(dict.fromkeys(paths, now))
        try:
            self._workers.append(_Worker(self._start(paths), paths, now))
        except (OSError, ValueError) as error:  # ValueError: a NUL in a path
            self.problems.append(f"cannot start the statvfs process for {paths[:4]}: {error}")

    def _read(self, seconds: float) -> None:
        """Read results for this long, or until only overdue processes are left."""
        deadline = time.monotonic() + seconds
        while True:
            # An overdue process must not cost every poll the whole wait.
            in_time = any(not self._is_overdue(worker) for worker in self._workers)
            left = max(0.0, deadline - time.monotonic()) if in_time else 0.0
            poll = select.poll()
            for worker in self._workers:
                poll.register(worker.stdout, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            for worker in [worker for worker in self._workers if worker.stdout.fileno() in ready]:
                self._read_worker(worker)
            if not left:
                return

    def _read_worker(self, worker: _Worker) -> None:
        part = os.read(worker.stdout.fileno(), 1 << 16)
        if not part:
            self._reap(worker)
            return
        *lines, worker.text = (worker.text + part).split(b"\n")
        worker.text = worker.text[-LINE_BYTES_MAX:]
        for line in lines:
            try:
                number, result = parse_result(line.decode("ascii", "replace"))
                path = worker.paths[number]
            except (ParseError, IndexError) as error:
                self.problems.append(f"statvfs: {error}")
                continue
            worker.outstanding.discard(path)
            if path in self._probed_at:
                self._results[path] = result

    def _reap(self, worker: _Worker) -> None:
        """Take the status of a process whose output has ended: all its threads have exited, so this does not wait."""
        worker.stdout.close()
        status = worker.process.wait()
        self._workers.remove(worker)
        if worker.outstanding and not self._is_overdue(worker):
            paths = sorted(worker.outstanding)[:4]
            self.problems.append(f"statvfs of {paths}: the process ended with status {status}")

    def _fail_overdue(self) -> None:
        """Report overdue paths as failed and kill their process, which may not be able to end."""
        for worker in self._workers:
            if worker.outstanding and self._is_overdue(worker):
                worker.process.kill()
                for path in worker.outstanding & self._probed_at.keys():
                    self._results[path] = ProbeFailure(None)

    def _is_overdue(self, worker: _Worker) -> bool:
        return self._monotonic() - worker.started >= self._limit


def _start(paths: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", WORKER_FILE, *paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def parse_result(line: str) -> tuple[int, FilesystemUsage | ProbeFailure]:
    """(index of the path, result) from a line of probe_worker.py. Raises ParseError."""
    words = line.split(" ")
    if len(words) == 3 and words[1] == "error":
        return parse_count(words[0]), ProbeFailure(parse_count(words[2]))
    if len(words) != 9:
        raise ParseError(f"malformed result {line[:60]!r}")
    try:
        seconds = float(words[1])
    except ValueError:
        raise ParseError(f"malformed time in {line[:60]!r}") from None
    unit, blocks, available, inodes, free, major, minor = map(parse_count, words[2:])
    sizes = blocks * unit, available * unit, inodes, free
    return parse_count(words[0]), FilesystemUsage(seconds, *sizes, f"{major}:{minor}")
