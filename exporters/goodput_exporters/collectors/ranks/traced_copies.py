"""How fast a rank copied to its device in the step that its last deep look traced, and what `goodput probe` reached there."""

from __future__ import annotations

import os

from goodput.rank_page import deep_look
from goodput.rank_page.reader import Reader
from goodput_exporters.collectors.ranks.reached_peaks import ReachedPeaks


class TracedCopies:
    """`poll` looks at the file beside the page, some 3 us, and reads it again when it has changed."""

    def __init__(self, reader: Reader, reached: ReachedPeaks):
        self._reader, self._reached = reader, reached
        self._path, self._seen = deep_look.path_of(reader.path), (0, 0)
        self._rate: float | None = None
        self._device = ""

    def poll(self) -> None:
        try:
            found = os.lstat(self._path)
        except OSError:
            return  # There is none, or it was removed with its page: what was read last stays.
        seen = found.st_mtime_ns, found.st_ino
        if seen == self._seen:
            return
        self._seen = seen
        try:
            look = deep_look.read(self._reader.path, os.fstat(self._reader.fd).st_uid)
        except deep_look.LookError:
            return  # A scrape counts it.
        result = look["seen"] if look is not None else None
        if result is not None:
            self._rate, self._device = deep_look.h2d_rate(result), result["device"]

    def fields(self) -> dict[str, float | None]:
        """The fields of a report's identity; each is None where it is not known."""
        reached = None if self._rate is None else self._reached.h2d(self._device)
        return {"h2d_bytes_per_second": self._rate, "reached_h2d_bytes_per_second": reached}
