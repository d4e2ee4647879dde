"""One process of a driver as the agent holds it: started, read without waiting, reaped without waiting.

In: a command (`command_of`) that writes the frames of driver_child.py, treated as hostile. Out: frames, the last lines of standard
error, and what the process has cost. A read takes at most READS_MAX × READ_BYTES; a frame of more than
gpu.SAMPLE_BYTES_MAX, or without its magic, ends the process. It does not know when a process is stuck.

    process = Process(command, environment); process.frames(); process.send(signal.SIGKILL); process.is_over(1.0)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from goodput.wire.identity import clean_text
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.worker import HEADER, MAGIC

STUCK, DIED, GARBLED, MEMORY = "stuck", "died", "garbled", "memory"
READ_BYTES, READS_MAX = 1 << 16, 64
LINES_KEPT, LINE_CHARS_MAX = 5, 200


class Ended(Exception):
    """This process is done with: the reason as in goodput_driver_restarts_total, "" where it found nothing."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason


class Frame(NamedTuple):
    kind: bytes
    body: bytes
    cpu_seconds: float
    memory_bytes: int
    dropped: int


class Process:
    """One process of a driver and its pipes. Raises OSError where it cannot be started."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]):
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0,
            cwd="/", env=environment, close_fds=True, start_new_session=True,
        )  # fmt: skip
        self.pid = self._popen.pid
        self.out_fd, self._error_fd = self._popen.stdout.fileno(), self._popen.stderr.fileno()
        os.set_blocking(self.out_fd, False)
        os.set_blocking(self._error_fd, False)
        self._buffer = bytearray()
        self.is_at_end = False
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.status: int | None = None
        self.cpu_seconds = 0.0
        self.memory_bytes = 0
        self.dropped = 0
        self.samples = 0

    def frames(self) -> list[Frame]:
        """Frames that have come; when there are no more, and for what is no frame, raises Ended."""
        found: list[Frame] = []
        try:
            for _ in range(READS_MAX):
                while (frame := self._cut()) is not None:
                    found.append(frame)
                self._read()
        except BlockingIOError:
            pass
        except Ended:
            if not found:
                raise
        return found

    def _read(self) -> None:
        chunk = os.read(self.out_fd, READ_BYTES)
        self._buffer += chunk
        if not chunk:
            self.is_at_end = True
            if len(self._buffer):
                raise Ended(GARBLED, f"ended within a frame, after {len(self._buffer)} bytes of it")
            raise Ended(DIED, "ended")

    def _cut(self) -> Frame | None:
        if len(self._buffer) < HEADER.size:
            return None
        magic, kind, length, *cost = HEADER.unpack_from(self._buffer)
        if magic != MAGIC or length > gpu_sample.SAMPLE_BYTES_MAX or not 0 <= cost[0] < 1e12:
            raise Ended(GARBLED, f"wrote no frame: {bytes(self._buffer[:32])!r}")
        if len(self._buffer) < HEADER.size + length:
            return None
        body = bytes(self._buffer[HEADER.size : HEADER.size + length])
        del self._buffer[: HEADER.size + length]
        return Frame(kind, body, *cost)

    def read_lines(self) -> bool:
        """Keep the last lines of standard error; whether there is more. Who writes faster than is read waits."""
        try:
            text = os.read(self._error_fd, READ_BYTES).decode("utf-8", "replace")
        except BlockingIOError:
            return False
        lines = [clean_text(line, LINE_CHARS_MAX) for line in text.splitlines()[-LINES_KEPT:]]
        self.lines.extend(line for line in lines if line.strip())
        return len(text) >= READ_BYTES // 2

    def is_over(self, seconds: float = 0.0) -> bool:
        """Whether it has ended, waiting for that for at most `seconds`; then it is reaped, and what it cost known."""
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

    def send(self, number: int) -> None:
        """A signal, unless it was reaped already: its number may be another's by then."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close(self) -> None:
        for file in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            file.close()


def command_of(name: str, options: Options, interval_seconds: float, module: str = "") -> list[str]:
    """The command line of a driver's process."""
    command = [sys.executable, "-m", "goodput_exporters.gpu.worker", name]
    command += ["--interval", repr(float(interval_seconds)), "--module", module]
    for field in fields(options):
        command.append(f"--{field.name.replace('_', '-')}={getattr(options, field.name)}")
    return command


def environment() -> dict[str, str]:
    """Ours, with search paths that hold in another working directory."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths if path)}
