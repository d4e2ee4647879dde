"""Which share of its time the main thread of a rank was ready to run, but had no core.

The kernel counts it in /proc/PID/schedstat ("sched-stats.rst", time spent waiting on a runqueue).
"""

from __future__ import annotations

from goodput_exporters.collector import CollectorError
from goodput_exporters.system.files import read_text

READ_EVERY_NS = 10 * 10**9
CHANGE_MIN = 0.01  # of the share, so that what is reported of a rank rarely changes


class CoreWaits:
    """`poll` reads the count each 10 s, some 10 us, of the process that it is given, from the first time on."""

    def __init__(self, procfs: str):
        self._procfs = procfs
        self._pid = 0
        self._first = (0, 0)  # the count in ns, and when it was read
        self._read_ns = 0
        self._ratio: float | None = None

    def poll(self, pid: int, now_ns: int) -> None:
        """`pid` is 0 where the process is not known: what was measured of it stays."""
        if not pid or (pid == self._pid and now_ns - self._read_ns < READ_EVERY_NS):
            return
        try:
            waited_ns = int((read_text(f"{self._procfs}/{pid}/schedstat", 128) or "").split()[1])
        except (CollectorError, ValueError, IndexError):
            return
        self._read_ns = now_ns
        if pid != self._pid:
            self._pid, self._first = pid, (waited_ns, now_ns)
            return
        ratio = min(max((waited_ns - self._first[0]) / (now_ns - self._first[1]), 0.0), 1.0)
        if abs(ratio - (self._ratio or 0.0)) >= CHANGE_MIN:
            self._ratio = round(ratio, 3)

    def fields(self) -> dict[str, float | None]:
        """The field of a report's identity; None below CHANGE_MIN, and where it is not known."""
        return {"core_wait_ratio": self._ratio or None}
