"""One collector's lane: runs it outside the scrape's own thread, times it, counts its failures, bridges its lateness.

In: collectors. Out: what they added, and their `goodput_node_collector_*` series. `collect` runs all that are due one
after the other in one thread, and gives them another thread each time one takes longer than STALL_SECONDS: threads
side by side would only take turns. A collector that hangs (sysfs waiting for a lock of the network stack, a process
in D state) costs itself and one thread, and is not started again until it returns.

Guarantee: `collect` returns by its deadline. Who is late is down, and what it added last is served in its place, for
KEPT_SECONDS; then its series end. It does not know what is collected.

    lanes = [Lane(collector), ...]; families = collect(lanes, time.monotonic_ns() + 80_000_000)
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from goodput.metrics import Families
from goodput_exporters.collector import NoData

log = logging.getLogger("goodput.node")

PROBLEMS_LOGGED_MAX = 256
STALL_SECONDS = 0.01
# A little over a usual scrape interval, so that a collector that is always late is shown as it was one scrape ago.
KEPT_SECONDS = 75.0


class Lane:
    def __init__(self, collector):
        self.collector = collector
        self.name = collector.name
        self.up = True
        self.errors = 0
        self.seconds = 0.0
        self.is_busy = False  # between `begin` and the end of `run`
        self._families: Families | None = None
        self._made_ns = 0
        self._logged: set[str] = set()

    def begin(self) -> bool:
        """Reserve the next run; False while the last one is still under way."""
        if self.is_busy:
            return False
        self.is_busy = True
        return True

    def withdraw(self) -> None:
        """The run that was reserved does not come about."""
        self.is_busy = False

    def run(self) -> None:
        families, start_ns = Families("node"), time.monotonic_ns()
        try:
            self.collector.collect(families)
            self.up = True
        except NoData:
            self.up = True
        except Exception as error:
            self.fail(f"{error}" or type(error).__name__)
        self._made_ns = time.monotonic_ns()
        self.seconds = (self._made_ns - start_ns) / 1e9
        # What it added before it failed is sound, so it is served.
        self._families = families
        self.is_busy = False

    def result(self, is_late: bool) -> Families | None:
        """What its last run added; None where that is too long ago."""
        if is_late:
            self.fail("did not return in time")
            if (time.monotonic_ns() - self._made_ns) / 1e9 > KEPT_SECONDS:
                self._families = None
        return self._families

    def fail(self, problem: str) -> None:
        """Count a failure; each distinct one is logged once."""
        self.up = False
        self.errors += 1
        if problem not in self._logged and len(self._logged) < PROBLEMS_LOGGED_MAX:
            self._logged.add(problem)
            log.warning("collector %s: %s", self.name, problem)

    def describe(self, families: Families) -> None:
        labels = {"collector": self.name}
        families.add("goodput_node_collector_up", labels, float(self.up))
        families.add("goodput_node_collector_seconds", labels, self.seconds)
        families.add("goodput_node_collector_errors_total", labels, self.errors)


def collect(lanes: Iterable[Lane], deadline_ns: int) -> list[Families]:
    """One run of each lane that is free, and what they added by the deadline (time.monotonic_ns)."""
    lanes = list(lanes)
    runs = _Runs([lane for lane in lanes if lane.begin()])
    runs.wait(deadline_ns)
    found = [lane.result(lane not in runs.returned) for lane in lanes]
    return [families for families in found if families is not None]


class _Runs:
    """The runs of one scrape: taken from a queue by one thread, and by more while that is stuck."""

    def __init__(self, due: list[Lane]):
        self._due, self._count = deque(due), len(due)
        self.returned: set[Lane] = set()
        self._all_returned = threading.Event()

    def wait(self, deadline_ns: int) -> None:
        """Until all have returned, or the deadline; those that were not begun by then are withdrawn."""
        before = -1
        try:
            while len(self.returned) < self._count:
                left_seconds = (deadline_ns - time.monotonic_ns()) / 1e9
                if left_seconds <= 0:
                    break
                if self._due and before in (-1, len(self.returned)):
                    threading.Thread(target=self._work, name="collect", daemon=True).start()
                before = len(self.returned)
                self._all_returned.wait(min(STALL_SECONDS, left_seconds))
        finally:
            while (lane := self._next()) is not None:
                lane.withdraw()

    def _work(self) -> None:
        while (lane := self._next()) is not None:
            lane.run()
            self.returned.add(lane)
            if len(self.returned) == self._count:
                self._all_returned.set()

    def _next(self) -> Lane | None:
        try:
            return self._due.popleft()
        except IndexError:
            return None
