"""A driver's worker process as the agent sees it: started, read and reaped without waiting.

Its output is not trusted: one call reads at most READS_MAX x READ_BYTES, and a frame that is too large or has no
magic ends the process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from goodput.wire.identity import clean_text
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.sample import SAMPLE_BYTES_MAX
from goodput_exporters.gpu.worker import HEADER, MAGIC

STUCK, DIED, GARBLED, MEMORY = "stuck", "died", "garbled", "memory"
READ_BYTES, READS_MAX = 1 << 16, 64
LINES_KEPT, LINE_CHARS_MAX = 5, 200


class WorkerEnded(Exception):
    """The process has ended or must end. `reason` as in goodput_driver_restarts_total; "": nothing to sample."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason


class Frame(NamedTuple):
    kind: bytes
    body: bytes


class WorkerProcess:
    """One process and its pipes. Raises OSError where it cannot be started."""

    def __init__(self, command: Sequence[str]):
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0,
            cwd="/", env=_environment(), close_fds=True, start_new_session=True,
        )  # fmt: skip
        self.pid = self._popen.pid
        stdin, stdout, stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr
        assert stdin and stdout and stderr  # Each is a pipe.
        self._pipes = stdin, stdout, stderr
        self.out_fd, self._error_fd = stdout.fileno(), stderr.fileno()
        os.set_blocking(self.out_fd, False)
        os.set_blocking(self._error_fd, False)
        self._buffer = bytearray()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)  # last lines of stderr
        self.status: int | None = None
        self.failure = ""  # the last one that it reported
        self.cpu_seconds = 0.0
        self.memory_bytes = 0
        self.dropped = 0
        self.samples = 0

    def frames(self) -> list[Frame]:
        """The frames that have arrived. Raises WorkerEnded at the end of the output or for malformed output."""
        found: list[Frame] = []
        try:
            for _ in range(READS_MAX):
                while (frame := self._next_frame()) is not None:
                    found.append(frame)
                self._read()
        except BlockingIOError:
            pass
        except WorkerEnded:
            if not found:
                raise
        return found

    def _read(self) -> None:
        chunk = os.read(self.out_fd, READ_BYTES)
        self._buffer += chunk
        if not chunk:
            if self._buffer:
                raise WorkerEnded(GARBLED, f"ended within a frame, after {len(self._buffer)} bytes of it")
            raise WorkerEnded(DIED, "ended")

    def _next_frame(self) -> Frame | None:
        if len(self._buffer) < HEADER.size:
            return None
        magic, kind, length, cpu_seconds, memory_bytes, dropped = HEADER.unpack_from(self._buffer)
        if magic != MAGIC or length > SAMPLE_BYTES_MAX or not 0 <= cpu_seconds < 1e12:
            raise WorkerEnded(GARBLED, f"wrote a malformed frame: {bytes(self._buffer[:32])!r}")
        if len(self._buffer) < HEADER.size + length:
            return None
        body = bytes(self._buffer[HEADER.size : HEADER.size + length])
        del self._buffer[: HEADER.size + length]
        self.cpu_seconds = max(self.cpu_seconds, cpu_seconds)
        self.dropped = max(self.dropped, dropped)
        self.memory_bytes = memory_bytes
        return Frame(kind, body)

    def read_stderr(self) -> bool:
        """Keep the last lines of stderr; True where there is probably more, which blocks the process meanwhile."""
        try:
            text = os.read(self._error_fd, READ_BYTES).decode("utf-8", "replace")
        except BlockingIOError:
            return False
        lines = [clean_text(line, LINE_CHARS_MAX) for line in text.splitlines()[-LINES_KEPT:]]
        self.lines.extend(line for line in lines if line.strip())
        return len(text) >= READ_BYTES // 2

    def wait(self, seconds: float = 0.0) -> bool:
        """Wait for the end of the process for at most `seconds` and reap it; False where it still runs."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            try:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status, usage = self.pid, 0, None
            if pid:
                self.status = self._popen.returncode = os.waitstatus_to_exitcode(status)
                if usage:
                    self.cpu_seconds = max(self.cpu_seconds, usage.ru_utime + usage.ru_stime)
            elif time.monotonic() >= deadline:
                return False
            else:
                time.sleep(0.005)
        return True

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process was reaped: its pid may be another process's by then."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()


def worker_command(path: str, options: Options) -> list[str]:
    """The command that runs the driver at MODULE:CLASS."""
    return [sys.executable, "-m", "goodput_exporters.gpu.worker", path, msgspec.json.encode(options).decode()]


def _environment() -> dict[str, str]:
    """Our environment, with search paths that hold in another working directory."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths if path)}
