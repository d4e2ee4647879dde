"""Says in the log that the ledger cannot be written: when that begins, once a minute while it lasts, each other reason
once, and when it ends.

Every push is a transaction that may fail; a line for each would fill the log of an aggregator whose database is away.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("goodput.aggregator")
LOGGED_EVERY_SECONDS = 60.0
REASONS_MAX = 8


class WriteFailures:
    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._count, self._since, self._logged = 0, 0.0, 0.0
        self._reasons: set[str] = set()

    def failed(self, error: Exception) -> None:
        """Note a transaction that failed."""
        now = self._clock()
        if not self._count:
            log.error("%s; pushes are refused until it can be written", error)
            self._since = self._logged = now
        elif now - self._logged >= LOGGED_EVERY_SECONDS or self._is_new(str(error)):
            log.error("%s; %d transactions failed in %.0f s", error, self._count + 1, now - self._since)
            self._logged = now
        self._count += 1
        self._reasons.add(str(error))

    def _is_new(self, reason: str) -> bool:
        return reason not in self._reasons and len(self._reasons) < REASONS_MAX

    def succeeded(self) -> None:
        """Note a transaction that was committed."""
        if self._count:
            seconds = self._clock() - self._since
            log.warning("the ledger is written again: %d transactions failed in %.0f s", self._count, seconds)
            self._count = 0
            self._reasons.clear()
