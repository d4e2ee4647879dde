"""Reads a source at intervals in a thread, so that the terminal answers keys while a server does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from goodput.top.model import Frame, SourceError

# A reading that takes long is repeated so seldom that it takes at most this share of the time.
SHARE_MAX = 0.2


class Source(Protocol):
    """Where runs are read: PageSource or ApiSource."""

    title: str

    def read(self, opened: str | None) -> Frame: ...


class Polling:
    """`frame` is the newest frame, None before the first; `problem` says why there is no newer one, "" where there is.

    `changed` is called, in the thread, after each reading.
    """

    def __init__(self, source: Source, seconds: float, changed: Callable[[], None]):
        self.source, self._seconds, self._changed = source, seconds, changed
        self.frame: Frame | None = None
        self.problem = ""
        self.opened: str | None = None
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="polling", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def open(self, run: str | None) -> None:
        """Read this run in detail from now on."""
        self.opened = run
        self._due.set()

    def _run(self) -> None:
        while True:
            self._due.clear()
            began = time.monotonic()
            try:
                self.frame, self.problem = self.source.read(self.opened), ""
            except SourceError as error:
                self.problem = str(error)
            except Exception as error:  # Such as pages that another version writes.
                self.problem = f"{self.source.title}: {type(error).__name__}: {error}"
            self._changed()
            took = time.monotonic() - began
            self._due.wait(max(self._seconds, took / SHARE_MAX) - took)
