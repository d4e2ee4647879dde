"""Runs collectors with a deadline, times them, counts their failures, and serves old results while one is late.

Collectors run one after the other in one thread; another thread is started each time one takes longer than
SLOW_COLLECTOR_SECONDS. A collector that hangs (sysfs waiting for a lock of the network stack, a process in D state) costs
itself and one thread, and is not started again until it returns. `run_collectors` returns by its deadline; what a
late collector added last is served for KEPT_SECONDS.

    runners = [CollectorRunner(collector), ...]
    families = run_collectors(runners, time.monotonic_ns() + 80_000_000)
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from goodput.metrics import Families
from goodput_exporters.collector import Collector, NoData

log = logging.getLogger("goodput.node")

PROBLEMS_LOGGED_MAX = 256
SLOW_COLLECTOR_SECONDS = 0.01
# A little over a usual scrape interval, so that a collector that is always late is one scrape behind.
KEPT_SECONDS = 75.0


class CollectorRunner:
    """Runs one collector and keeps its last result."""

    def __init__(self, collector: Collector):
        self.collector = collector
        self.name = collector.name
        self.up = True
        self.errors = 0
        self.seconds = 0.0
        self.is_busy = False  # from the moment a run is queued to its end
        self._families: Families | None = None
        self._collected_ns = 0
        self._logged: set[str] = set()

    def run(self) -> None:
        families, start_ns = Families("node"), time.monotonic_ns()
        try:
            self.collector.collect(families)
            self.up = True
        except NoData:
            self.up = True
        except Exception as error:
            self.fail(f"{error}" or type(error).__name__)
        self._collected_ns = time.monotonic_ns()
        self.seconds = (self._collected_ns - start_ns) / 1e9
        # What it added before it failed is valid.
        self._families = families
        self.is_busy = False

    def result(self, is_late: bool) -> Families | None:
        """What the last run added; None where that is too old."""
        if is_late:
            self.fail("did not return in time")
            if (time.monotonic_ns() - self._collected_ns) / 1e9 > KEPT_SECONDS:
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


def run_collectors(runners: Iterable[CollectorRunner], deadline_ns: int) -> list[Families]:
    """Run each collector that is not busy; returns their results by the deadline (time.monotonic_ns)."""
    runners = list(runners)
    queue = deque(runner for runner in runners if not runner.is_busy)
    for runner in queue:
        runner.is_busy = True
    count, returned, all_returned = len(queue), set(), threading.Event()

    def work() -> None:
        while (runner := _next(queue)) is not None:
            runner.run()
            returned.add(runner)
            if len(returned) == count:
                all_returned.set()

    before = -1
    try:
        while len(returned) < count and (left_seconds := (deadline_ns - time.monotonic_ns()) / 1e9) > 0:
            # At first, and whenever no collector has returned during the last wait.
            if queue and before in (-1, len(returned)):
                threading.Thread(target=work, name="collect", daemon=True).start()
            before = len(returned)
            all_returned.wait(min(SLOW_COLLECTOR_SECONDS, left_seconds))
    finally:
        while (runner := _next(queue)) is not None:
            runner.is_busy = False  # It was not started in time.
    results = [runner.result(is_late=runner not in returned) for runner in runners]
    return [families for families in results if families is not None]


def _next(queue: deque[CollectorRunner]) -> CollectorRunner | None:
    try:
        return queue.popleft()
    except IndexError:
        return None
