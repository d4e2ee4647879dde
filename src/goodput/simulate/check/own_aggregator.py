"""An aggregator of the simulation's own: a child process on a free port, with a temporary ledger, on a simulated clock.

with OwnAggregator(serve) as own:          # serve(listener, ledger_url, clock_ns) runs it
    own.clock.set(now_ns); StackClient(own.url) ...
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from goodput.simulate.check.stack import StackClient, StackError

READY_SECONDS_MAX, END_SECONDS_MAX = 60.0, 5.0
_PR_SET_PDEATHSIG = 1
Serve = Callable[[socket.socket, str, Callable[[], int]], object]


class SharedClock:
    """Unix ns in memory that a forked child shares."""

    def __init__(self, now_ns: int):
        self._memory = mmap.mmap(-1, 8)
        self.set(now_ns)

    def set(self, now_ns: int) -> None:
        struct.pack_into("<q", self._memory, 0, now_ns)

    def __call__(self) -> int:
        return struct.unpack_from("<q", self._memory, 0)[0]


class OwnAggregator:
    def __init__(self, serve: Serve, now_ns: int):
        self._serve, self.clock = serve, SharedClock(now_ns)
        self.folder = Path(tempfile.mkdtemp(prefix="goodput-simulate-"))
        self.url = ""

    def __enter__(self) -> OwnAggregator:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            # Forked, since it shares the clock and what is imported.
            self._process = multiprocessing.get_context("fork").Process(
                target=self._run, args=(listener, os.getpid()), daemon=True
            )
            self._process.start()
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._process.terminate()
        self._process.join(END_SECONDS_MAX)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, listener: socket.socket, parent: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return  # The parent died before it could be followed.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, sys.stdout.fileno() if _has_file(sys.stdout) else 1)
        os.dup2(log, 2)
        self._serve(listener, f"sqlite:///{self.folder / 'ledger.db'}", self.clock)

    def _wait(self) -> None:
        client, deadline = StackClient(self.url), time.monotonic() + READY_SECONDS_MAX
        while not client.is_ready():
            if not self._process.is_alive() or time.monotonic() > deadline:
                log = self.folder / "log"
                text = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                raise StackError(f"the aggregator did not start: {text}")
            time.sleep(0.02)
        client.close()


def _has_file(stream) -> bool:
    try:
        return stream.fileno() >= 0
    except (OSError, ValueError, AttributeError):
        return False
