"""The agent: looks at the rank pages every second, hands what is new to the pusher, answers scrapes.

In: settings. Out: `exposition()` for `/metrics`, and pushes. Two threads: the looks, and the pusher where
there is an aggregator. A scrape runs the collectors, which have COLLECT_SECONDS_MAX together; one that comes while
another is under way is given that one's answer.

Guarantee: nothing that a collector, a page or the aggregator does ends the looks or loses a scrape; it
becomes a series. A scrape is answered within 100 ms, whoever hangs. Cost beside 8 GPUs, 8 NICs and 8 ranks at 20
steps a second: 2 ms for each look, 2 ms for each sample of the GPUs, 15 ms for each scrape (bench/node.py).

    with Agent("/dev/shm/goodput", aggregator="http://127.0.0.1:9471") as agent:
        print(agent.exposition().decode())
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from goodput.metrics import Families
from goodput.rank_page import page
from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collector_runner import Lane, collect
from goodput_exporters.collectors import discover
from goodput_exporters.directory_lock import DirectoryLock, Refused
from goodput_exporters.events.event_queue import DRIVER, ETHERNET, GPU, RDMA, TCP, HealthLog
from goodput_exporters.events.link_monitor import Links
from goodput_exporters.gpu.sample import Sample
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials
from goodput_exporters.push.pusher import Pusher
from goodput_exporters.push.stacks import Stacks
from goodput_exporters.server.authentication import NodeAuthenticator
from goodput_exporters.server.exposition_text import Writer

log = logging.getLogger("goodput.node")

# The rest of 100 ms is for writing it out.
COLLECT_SECONDS_MAX = 0.08
# For who shows one exposition and ends: nothing was collected before that could be served instead.
ONCE_SECONDS_MAX = 2.0
STALE_LOOKS, STALE_SECONDS_MIN = 5, 10.0
JOIN_SECONDS_MAX = 1.0
LINKS_SECONDS = 5.0


class Agent:
    """One node's agent. `start` raises lock.Refused where another one reads the same directory.

    `failure` is None, or why the agent stopped by itself.
    """

    def __init__(
        self,
        directory: str | None = None,
        *,
        aggregator: str | None = None,
        credentials: Credentials = NONE_NEEDED,
        authenticator: NodeAuthenticator | None = None,
        interval_seconds: float = 1.0,
        push_interval_seconds: float = 5.0,
        grace_seconds: float = 60.0,
        sysfs: str = "/sys",
        procfs: str = "/proc",
        py_spy: bool = False,
        gpus_expected: int | None = None,
        gpu_interval_seconds: float = 1.0,
        dcgm_endpoint: str = "",
        drivers: tuple[str, ...] | None = None,
        paths: tuple[str, ...] = (),
        node: str | None = None,
        version: str | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        self.settings = Settings(
            directory=directory or page.default_directory(),
            sysfs=sysfs,
            procfs=procfs,
            interval_seconds=interval_seconds,
            grace_seconds=grace_seconds,
            gpus_expected=gpus_expected,
            gpu_interval_seconds=gpu_interval_seconds,
            dcgm_endpoint=dcgm_endpoint,
            drivers=drivers,
            paths=paths,
            monotonic_ns=monotonic_ns,
            unix_ns=unix_ns,
        )
        self.node = node or socket.gethostname()
        self.version = version or _version()
        self.failure: str | None = None
        self.authenticator = authenticator or NodeAuthenticator()
        self.lanes = {lane.name: lane for lane in (Lane(kind(self.settings)) for kind in discover())}
        self.ranks = self.lanes["ranks"].collector
        self.gpus, self.phases = self.lanes["gpus"].collector, self.lanes["gpu_phases"].collector
        self.lanes["numa"].collector.follow(self.ranks)
        self.lanes["attribution"].collector.follow(self.ranks, self.gpus.seen)
        self.phases.follow(self.ranks)
        self.health_log = HealthLog(unix_ns, kept=bool(aggregator))
        self.links = Links(self.settings)
        self.gpus.listener = self._hear
        self.stacks = Stacks(self.ranks.owns, unix_ns=unix_ns) if aggregator and py_spy else None
        self.pusher = None
        if aggregator:
            arguments = {"credentials": credentials, "interval_seconds": push_interval_seconds}
            arguments["stacks"], arguments["health"] = self.stacks, self.health_log
            self.pusher = Pusher(aggregator, self.node, unix_ns=unix_ns, **arguments)
        self._directory_lock = DirectoryLock(self.settings.directory)
        self._scraping = threading.Lock()
        self._writer, self._text = Writer(), b""
        self._scrape_seconds: float | None = None
        self._stopping = threading.Event()
        self._looked_ns, self._links_ns = time.monotonic_ns(), 0
        self._thread = threading.Thread(target=self._run, name="look", daemon=True)

    # -- its life

    def start(self) -> None:
        """Take the first look and begin; raises lock.Refused where another agent is at work."""
        self._directory_lock.hold()
        self.look()
        # What a first scrape finds late was collected once, and is served.
        collect(self.lanes.values(), time.monotonic_ns() + int(ONCE_SECONDS_MAX * 1e9))
        self._thread.start()
        self.gpus.start()
        if self.pusher:
            self.pusher.start()

    def stop(self, flush_seconds: float = 3.0) -> None:
        """Take a last look, send what waits for at most `flush_seconds`, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS_MAX)
            self.look()
        if self.pusher:
            self.pusher.stop(flush_seconds)
        if self.stacks:
            self.stacks.stop()
        for name in ("gpus", "storage", "ranks"):
            self.lanes[name].collector.close()
        self._directory_lock.release()

    def __enter__(self) -> Agent:
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the agent was stopped or has stopped by itself; False when the time is over first."""
        return self._stopping.wait(seconds)

    def once(self) -> str:
        """One look and one exposition, which change nothing on the node."""
        self._look_guarded(self.ranks.look)
        self.gpus.start()
        try:
            if not self.gpus.settle():
                silent = [report.name for report in self.gpus.reports() if not report.settled]
                log.warning("GPU drivers that have not answered: %s", ", ".join(silent))
            self._look_at_links()
            return self.exposition(ONCE_SECONDS_MAX).decode()
        finally:
            self.gpus.close()

    # -- looking

    def look(self) -> None:
        """One look: what is new goes to the pusher, what is done with is removed."""
        reports = self._look_guarded(self.ranks.look)
        if self.pusher and reports:
            self.pusher.offer([self.phases.told(report) for report in reports])
        self._look_at_links()
        settled = self.pusher.settled if self.pusher else (lambda key: True)
        for key in self._look_guarded(lambda: self.ranks.sweep(settled)) or ():
            self.phases.forget(key)
            if self.pusher:
                self.pusher.forget(key)
        self._looked_ns = time.monotonic_ns()

    def health(self) -> str | None:
        """None while the looks go on, else what is wrong."""
        age_seconds = (time.monotonic_ns() - self._looked_ns) / 1e9
        if age_seconds > max(STALE_SECONDS_MIN, STALE_LOOKS * self.settings.interval_seconds):
            return f"the last look at the rank pages was {age_seconds:.0f} s ago"
        return self.failure

    def _run(self) -> None:
        while not self._stopping.wait(self.ranks.wait_seconds):
            try:
                self._directory_lock.hold()
            except Refused as refusal:
                self.failure = str(refusal)
                self._stopping.set()
                return
            self.look()

    def _look_guarded(self, act: Callable):
        try:
            return act()
        except NoData:
            return None
        except Exception as error:
            self.lanes["ranks"].fail(f"look failed: {error!r}")
            return None

    def _hear(self, sample: Sample) -> None:
        """A GPU driver's sample, in that driver's thread."""
        whole = [gpu.uuid for gpu in sample.gpus if not gpu.parent]
        self.health_log.know(f"gpu {sample.driver}", GPU, whole)
        try:
            self.phases.hear(sample)
        finally:
            for event in sample.events:
                self.health_log.add(event, self.phases.ranks_on(event.device), sample.driver)

    def _look_at_links(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._links_ns < LINKS_SECONDS * 1e9:
            return
        self._links_ns = now_ns
        try:
            events = [*self.links.look(), *self.gpus.troubles()]
            self._know_devices()
            for event in events:
                self.health_log.add(event, self.ranks.living())
        except Exception as error:
            self.lanes["infiniband"].fail(f"look at links failed: {error!r}")

    def _know_devices(self) -> None:
        know, here = self.health_log.know, self.links.here()
        know("ethernet", ETHERNET, here["ethernet"])
        know("rdma", RDMA, here["rdma"])
        know("tcp", TCP, here["tcp"])
        know("drivers", DRIVER, [report.name for report in self.gpus.reports() if not report.absent])

    # -- the scrape

    def exposition(self, seconds_max: float = COLLECT_SECONDS_MAX) -> bytes:
        """All series in the Prometheus text format. Of a collector that is late there is what it added last."""
        is_alone = self._scraping.acquire(blocking=False)
        if not is_alone:
            self._scraping.acquire()
        try:
            if is_alone or not self._text:
                self._text = self._expose(seconds_max)
            return self._text
        finally:
            self._scraping.release()

    def _expose(self, seconds_max: float) -> bytes:
        start_ns = time.monotonic_ns()
        parts = collect(self.lanes.values(), start_ns + int(seconds_max * 1e9))
        text = self._writer.write([*parts, self._own()])
        self._scrape_seconds = (time.monotonic_ns() - start_ns) / 1e9
        return text

    def _own(self) -> Families:
        families = Families("node")
        families.add("goodput_node_info", {"host": self.node, "version": self.version}, 1)
        for lane in self.lanes.values():
            lane.describe(families)
        if self.pusher:
            self.pusher.collect(families)
        self.authenticator.collect(families)
        if self.stacks:
            self.stacks.collect(families)
        self.health_log.collect(families)
        if self._scrape_seconds is not None:
            families.add("goodput_node_scrape_seconds", {}, self._scrape_seconds)
        families.add("goodput_node_cpu_seconds_total", {}, time.process_time())
        memory = resident_bytes()
        if memory is not None:
            families.add("goodput_node_memory_bytes", {}, memory)
        return families


def resident_bytes() -> int | None:
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("goodput-telemetry")
    except metadata.PackageNotFoundError:
        return "unknown"
