"""The running stack of `goodput up`: start, wait until ready, watch, end.

All processes are ended by pid whatever happens. A lock in the data folder allows one stack at a time.

    with Stack(options) as stack:
        stack.start(); stack.watch()          # until `stack.stop()` is called, for example by a signal handler
"""

from __future__ import annotations

import fcntl
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from goodput.child_processes import Child, end_all
from goodput.up.files import UpError
from goodput.up.server_plan import Options, Server, plan

READY_SECONDS_MAX = 60.0
END_SECONDS_MAX = 5.0
_POLL_SECONDS = 0.1
# Without proxies: http_proxy of the environment would apply to loopback too.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Stack:
    """A context manager; leaving it ends every process it started."""

    def __init__(self, options: Options):
        self.options = options
        self.servers: list[Server] = []
        self.absent: dict[str, str] = {}
        self.children: list[Child] = []
        self.stopping = 0
        self._lock = -1

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_) -> None:
        self.end()

    def stop(self, *_) -> None:
        """Request the end; safe in a signal handler. A second request kills without waiting."""
        self.stopping += 1

    def start(self) -> None:
        """Start every server and wait until all are ready. Raises UpError; returns early after `stop`."""
        logs = self._folder("logs")
        self._hold()
        try:
            self.servers, self.absent = plan(self.options)
        except OSError as error:
            raise UpError(f"{error.filename or self.options.data}: {error.strerror}") from error
        for server in self.servers:
            for first in self.servers:
                if first.name == server.after:
                    self._wait_for(first)
            if self.stopping:
                return
            try:
                self.children.append(Child(server.name, server.command, logs, server.environ))
            except OSError as error:
                raise UpError(
                    f"{server.name} cannot be started: {server.command[0]}: {error.strerror}"
                ) from error
        for server in self.servers:
            self._wait_for(server)

    def watch(self) -> None:
        """Return after `stop`. Raises UpError when a server ends by itself."""
        while not self.stopping:
            self._check_children()
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """End every process within seconds, the agent first so that it can push what it still has."""
        agent = [child for child in self.children if child.name == "node"]
        others = [child for child in self.children if child.name != "node"]
        end_all(agent, 0.0 if self.stopping > 1 else END_SECONDS_MAX)
        end_all(others, 0.0 if self.stopping > 1 else END_SECONDS_MAX)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def pids(self) -> dict[str, int]:
        return {child.name: child.process.pid for child in self.children}

    def _folder(self, name: str) -> Path:
        folder = self.options.data / name
        try:
            self.options.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UpError(f"--data {self.options.data}: {error.strerror}") from error
        return folder

    def _hold(self) -> None:
        """Lock the data folder: two stacks would overwrite each other's configuration and ledger."""
        path = self.options.data / ".lock"
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UpError(
                f"another `goodput up` uses {self.options.data}; choose another folder with --data DIR"
            ) from None
        except OSError as error:
            raise UpError(f"{path}: {error.strerror}") from error

    def _wait_for(self, server: Server) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        last = "no answer"
        while not self.stopping:
            self._check_children()
            last = _problem(server.health_url)
            if not last:
                return
            if time.monotonic() >= deadline:
                child = next(child for child in self.children if child.name == server.name)
                raise UpError(
                    f"{server.name} was not ready after {READY_SECONDS_MAX:g} s ({server.health_url}: {last})\n"
                    f"{child.tail()}"
                )
            time.sleep(_POLL_SECONDS / 2)

    def _check_children(self) -> None:
        for child in self.children:
            status = child.poll()
            if status is not None:
                how = f"by signal {-status}" if status < 0 else f"with status {status}"
                raise UpError(f"{child.name} ended {how}; see its log {child.log}\n{child.tail()}".rstrip())


def _problem(url: str) -> str:
    """Why a server is not ready, empty if it answers 200."""
    try:
        with _opener.open(url, timeout=2) as answer:
            return "" if answer.status == 200 else f"status {answer.status}"
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
