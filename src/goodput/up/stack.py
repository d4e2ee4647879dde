"""The stack of `goodput up` as it runs: started, waited for, watched, ended.

In: parts. Out: running servers, until somebody says stop or one of them ends. Every wait has a bound, looks at the
children and at `stop`, and whatever happens all of them are ended by their pids: the agent first, since it sends what
it still has, then the others at once. One stack at a time works in a data folder; the kernel drops its lock with it.

    with Stack(options) as stack:
        stack.start(); stack.watch()          # ends when `stack.stop()` is called, as from a signal handler
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
from goodput.up.parts import Options, Part, plan

READY_SECONDS_MAX = 60.0
END_SECONDS_MAX = 5.0
_LOOK_SECONDS = 0.1
# Without it a proxy of the environment would be asked for loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Stack:
    """One stack, for `with`; leaving it ends every process that it started."""

    def __init__(self, options: Options):
        self.options = options
        self.parts: list[Part] = []
        self.absent: dict[str, str] = {}
        self.children: list[Child] = []
        self.stopping = 0
        self._lock = -1

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_) -> None:
        self.end()

    def stop(self, *_) -> None:
        """Ask it to end; may be called by a signal handler. Asked again, nothing is waited for any more."""
        self.stopping += 1

    def start(self) -> None:
        """Start every part and wait until all are well. Raises UpError; returns early when asked to stop."""
        logs = self._folder("logs")
        self._hold()
        try:
            self.parts, self.absent = plan(self.options)
        except OSError as error:
            raise UpError(f"{error.filename or self.options.data}: {error.strerror}") from error
        for part in self.parts:
            for first in self.parts:
                if first.name == part.after:
                    self._wait_for(first)
            if self.stopping:
                return
            try:
                self.children.append(Child(part.name, part.command, logs, part.environ))
            except OSError as error:
                raise UpError(
                    f"{part.name} cannot be started: {part.command[0]}: {error.strerror}"
                ) from error
        for part in self.parts:
            self._wait_for(part)

    def watch(self) -> None:
        """Return when asked to stop. Raises UpError when a part ends by itself."""
        while not self.stopping:
            self._expect_all()
            time.sleep(_LOOK_SECONDS)

    def end(self) -> None:
        """End every process, within seconds."""
        agent = [child for child in self.children if child.name == "node"]
        others = [child for child in self.children if child.name != "node"]
        end_all(agent, 0.0 if self.stopping > 1 else END_SECONDS_MAX)
        end_all(others, 0.0 if self.stopping > 1 else END_SECONDS_MAX)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def pids(self) -> dict[str, int]:
        return {child.name: child.process.pid for child in self.children}

    # -- inside

    def _folder(self, name: str) -> Path:
        folder = self.options.data / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UpError(f"--data {self.options.data}: {error.strerror}") from error
        return folder

    def _hold(self) -> None:
        """Take the data folder's lock. Two stacks would write over each other's configuration and ledger."""
        path = self.options.data / ".lock"
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UpError(
                f"another `goodput up` works in {self.options.data}; take another folder: --data DIR"
            ) from None
        except OSError as error:
            raise UpError(f"{path}: {error.strerror}") from error

    def _wait_for(self, part: Part) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        last = "no answer"
        while not self.stopping:
            self._expect_all()
            last = _unwell(part.health_url)
            if not last:
                return
            if time.monotonic() >= deadline:
                child = next(child for child in self.children if child.name == part.name)
                raise UpError(
                    f"{part.name} was not ready after {READY_SECONDS_MAX:g} s ({part.health_url}: {last})\n"
                    f"{child.tail()}"
                )
            time.sleep(_LOOK_SECONDS / 2)

    def _expect_all(self) -> None:
        for child in self.children:
            status = child.poll()
            if status is not None:
                how = f"by signal {-status}" if status < 0 else f"with status {status}"
                raise UpError(f"{child.name} ended {how}; its log is {child.log}\n{child.tail()}".rstrip())


def _unwell(url: str) -> str:
    """What is wrong with a server, empty when it answers 200."""
    try:
        with _opener.open(url, timeout=2) as answer:
            return "" if answer.status == 200 else f"status {answer.status}"
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
