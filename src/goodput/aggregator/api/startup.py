"""Start-up: the ledger is migrated and the runs are read from it while the server already listens.

Until they are whole only /healthz, /readyz, the sign-in and the page's files answer; everything else is refused with 503
and Retry-After, so that agents keep what they push. A ledger that is read within WAIT_SECONDS is whole before the server
listens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from goodput.access.responses import Refusal

log = logging.getLogger("goodput.aggregator")
WAIT_SECONDS = 1.0
# Without a process read, /healthz fails, so that what watches it starts the server again.
STALL_SECONDS = 600.0
ROUTES = frozenset(("healthz", "readyz", "login", "page"))  # that answer meanwhile


class Startup:
    """`restored` of `known` rank processes are in memory, after `converted` of `to_convert` step rows of an older ledger.

    `error` is why the ledger could not be read.
    """

    def __init__(self, restore: Callable[[Startup], None], clock: Callable[[], float] = time.monotonic):
        self._restore, self._clock = restore, clock
        self._advanced: float | None = None  # when the last process was read; None while not reading
        self.known = self.restored = self.to_convert = self.converted = 0
        self.is_whole = self.is_stopping = False
        self.error: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None

    async def run(self, then: Callable[[], None]) -> None:
        """Read the ledger in a thread, then call `then`. No one else uses the runs meanwhile."""
        try:
            await asyncio.to_thread(self._restore, self)
        except Exception as error:
            return self.fail(error)
        self._advanced = None
        if self.restored:
            log.info("restored %d rank processes", self.restored)
        self.is_whole = True
        then()

    def fail(self, error: Exception) -> None:
        """End the server, since it cannot serve its ledger, or may not any more."""
        self.error = error
        log.error("%s", error)
        self.on_failure()

    def begin_reading(self, known: int) -> None:
        """Called by the thread when the ledger has the present version. A migration is not judged by its progress:
        one of its statements may take hours, and would begin anew after a restart."""
        self.known, self._advanced = known, self._clock()

    def set_restored(self, processes: int) -> None:
        """Called by the thread after each process; ends it when the server stops."""
        if self.is_stopping:
            raise InterruptedError("stopped while the ledger was read")
        self.restored, self._advanced = processes, self._clock()

    def set_converted(self, done: int, to_do: int) -> None:
        """Called by the thread while the ledger is brought to the present version; ends it when the server stops."""
        if self.is_stopping:
            raise InterruptedError("stopped while the ledger was converted; the next start continues")
        self.converted, self.to_convert = done, to_do
        log.info("converted %d of about %d step rows of the ledger", done, to_do)

    def check(self, route: str) -> None:
        """Raise Refusal for a route that needs the runs while they are not whole."""
        if not self.is_whole and route not in ROUTES:
            raise Refusal("starting", self.text())

    def stall(self) -> str | None:
        """What to answer when the ledger has not been read on for STALL_SECONDS, else None."""
        seconds = 0.0 if self._advanced is None else self._clock() - self._advanced
        return f"{self.text()}: no progress for {seconds:.0f} s" if seconds > STALL_SECONDS else None

    def text(self) -> str:
        """How far it is, such as `starting, 34 %`."""
        if self.is_whole:
            return "ready"
        if self.to_convert and not self.known:
            return f"converting the ledger, {min(100 * self.converted // self.to_convert, 99)} %"
        percent = 100 * self.restored // self.known if self.known else 0
        return f"starting, {min(percent, 99)} %"

    def document(self) -> dict[str, object]:
        """The answer of /readyz."""
        found: dict[str, object] = {"status": self.text()}
        found |= {"processes_restored": self.restored, "processes_known": self.known}
        if self.to_convert:
            found |= {"rows_converted": self.converted, "rows_to_convert": self.to_convert}
        return found
