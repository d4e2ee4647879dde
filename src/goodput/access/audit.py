"""The audit log: one JSON object a line for each sign-in, change of a token, end of a run and refused request.

Lines go to a file of mode 0600, or to the log of the program. They never have a token's secret. At most
LINES_PER_MINUTE_MAX lines a minute are of refusals, the first of each kind and address, and as many of what the holders
of each token do, so that no client can fill a disk or hide what another one does; what is left out is counted. Of changes of
the token file none is.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable
from logging.handlers import WatchedFileHandler

LINES_PER_MINUTE_MAX = 60
TEXT_CHARS_MAX = 256
REFUSED, OTHER = "refused", "other"


class AuditLog:
    """`dropped` counts lines that were left out, refused or other."""

    def __init__(self, logger: logging.Logger | None = None, clock: Callable[[], float] = time.time):
        self._log = logging.getLogger("goodput.audit") if logger is None else logger
        self._clock = clock
        self.dropped: Counter[str] = Counter({REFUSED: 0, OTHER: 0})
        self._minute = -1
        self._written: Counter[tuple[str, str]] = Counter()  # by kind and token
        self._seen: set[Hashable] = set()

    def event(self, event: str, **fields: object) -> None:
        """Something that the holder of a valid token did."""
        self._begin_minute()
        self._write(OTHER, event, fields, str(fields.get("token_id", "")))

    def token_event(self, event: str, **fields: object) -> None:
        """A change that the owner of the token file made."""
        self._begin_minute()
        self._log_line(OTHER, event, fields)

    def refusal(self, reason: str, address: str, **fields: object) -> None:
        """A refused request; further ones of this reason and address in the same minute are only counted."""
        self._begin_minute()
        key = reason, address
        if key in self._seen:
            self.dropped[REFUSED] += 1
        else:
            self._write(REFUSED, "refused", {"reason": reason, "address": address, **fields})
            if len(self._seen) < LINES_PER_MINUTE_MAX:
                self._seen.add(key)

    def _begin_minute(self) -> None:
        minute = int(self._clock() // 60)
        if minute != self._minute:
            self._minute = minute
            self._written.clear()
            self._seen.clear()

    def _write(self, kind: str, event: str, fields: dict[str, object], of: str = "") -> None:
        if self._written[kind, of] >= LINES_PER_MINUTE_MAX:
            self.dropped[kind] += 1
            return
        self._written[kind, of] += 1
        self._log_line(kind, event, fields)

    def _log_line(self, kind: str, event: str, fields: dict[str, object]) -> None:
        shown = {name: _bounded(value) for name, value in fields.items() if value is not None}
        line = {"time": round(self._clock(), 3), "event": event, **shown, "dropped": self.dropped[kind]}
        self._log.info("%s", json.dumps(line))


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return value[:TEXT_CHARS_MAX]
    return [_bounded(one) for one in value[:64]] if isinstance(value, (list, tuple)) else value


def file_logger(path: str) -> logging.Logger:
    """A logger that appends to a file of mode 0600, and opens a new one when that was renamed. Raises OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    handler = _PrivateFile(path, encoding="utf-8")
    logger = logging.getLogger("goodput.audit")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger


class _PrivateFile(WatchedFileHandler):
    def _open(self):
        number = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(number, self.mode, encoding=self.encoding)
