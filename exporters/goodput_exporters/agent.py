"""The agent: looks at the rank pages every second, hands what is new to the pusher, answers scrapes.

In: settings. Out: `exposition()` for `/metrics`, and pushes. Two threads: the looks, and the pusher where
there is an aggregator. A scrape runs the collectors side by side, each with COLLECT_SECONDS_MAX to answer.

Guarantee: nothing that a collector, a page or the aggregator does ends the looks or loses a scrape; it
becomes a series. Cost with 8 ranks at 20 steps a second: about 5 ms for each look, 20 ms for each scrape.

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

from prometheus_client import generate_latest

from goodput import page
from goodput.metrics import CATALOGUE, Families
from goodput_exporters.collectors import NoData, Settings, discover
from goodput_exporters.gpu import Sample
from goodput_exporters.health import HealthLog
from goodput_exporters.lane import Lane
from goodput_exporters.links import Links
from goodput_exporters.lock import DirectoryLock, Refused
from goodput_exporters.push import Pusher
from goodput_exporters.stacks import Stacks

log = logging.getLogger("goodput.node")

COLLECT_SECONDS_MAX = 2.0
STALE_LOOKS, STALE_SECONDS_MIN = 5, 10.0
JOIN_SECONDS_MAX = 1.0
LINKS_SECONDS = 2.0


class Agent:
    """One node's agent. `start` raises lock.Refused where another one reads the same directory.

    `failure` is None, or why the agent stopped by itself.
    """

    def __init__(
        self,
        directory: str | None = None,
        *,
        aggregator: str | None = None,
        token_file: str | None = None,
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
        self.lanes = {lane.name: lane for lane in (Lane(kind(self.settings)) for kind in discover())}
        self.ranks = self.lanes["ranks"].collector
        self.gpus, self.phases = self.lanes["gpus"].collector, self.lanes["gpu_phases"].collector
        self.lanes["numa"].collector.follow(self.ranks)
        self.lanes["attribution"].collector.follow(self.ranks, self.gpus.seen)
        self.phases.follow(self.ranks)
        self.health_log = HealthLog(unix_ns)
        self.links = Links(self.settings)
        self.gpus.listener = self._hear
        self.stacks = Stacks(self.ranks.owns, unix_ns=unix_ns) if aggregator and py_spy else None
        self.pusher = None
        if aggregator:
            arguments = {"token_file": token_file, "interval_seconds": push_interval_seconds}
            arguments["stacks"], arguments["health"] = self.stacks, self.health_log
            self.pusher = Pusher(aggregator, self.node, unix_ns=unix_ns, **arguments)
        self._directory_lock = DirectoryLock(self.settings.directory)
        self._scraping = threading.Lock()
        self._stopping = threading.Event()
        self._looked_ns, self._links_ns = time.monotonic_ns(), 0
        self._thread = threading.Thread(target=self._run, name="look", daemon=True)

    # -- its life

    def start(self) -> None:
        """Take the first look and begin; raises lock.Refused where another agent is at work."""
        self._directory_lock.hold()
        self.look()
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
            self.gpus.settle()
            return self.exposition().decode()
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
        self.phases.hear(sample)
        for event in sample.events:
            self.health_log.add(event, self.phases.ranks_on(event.device), sample.driver)

    def _look_at_links(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._links_ns < LINKS_SECONDS * 1e9:
            return
        self._links_ns = now_ns
        try:
            for event in self.links.look():
                self.health_log.add(event, self.ranks.living())
        except Exception as error:
            self.lanes["infiniband"].fail(f"look at links failed: {error!r}")

    # -- the scrape

    def exposition(self) -> bytes:
        """All series in the Prometheus text format. A collector that hangs is left out."""
        with self._scraping:
            deadline_ns = time.monotonic_ns() + int(COLLECT_SECONDS_MAX * 1e9)
            for lane in self.lanes.values():
                lane.begin()
            parts = [lane.finish(deadline_ns) for lane in self.lanes.values()]
            parts.append(self._own())
            return generate_latest(_Merged([part for part in parts if part is not None]))

    def _own(self) -> Families:
        families = Families("node")
        families.add("goodput_node_info", {"host": self.node, "version": self.version}, 1)
        for lane in self.lanes.values():
            lane.describe(families)
        if self.pusher:
            self.pusher.collect(families)
        if self.stacks:
            self.stacks.collect(families)
        self.health_log.collect(families)
        families.add("goodput_node_cpu_seconds_total", {}, time.process_time())
        memory = resident_bytes()
        if memory is not None:
            families.add("goodput_node_memory_bytes", {}, memory)
        return families


class _Merged:
    """Families of several collectors as one: a family that two of them fill is written once."""

    def __init__(self, parts: list[Families]):
        merged: dict[str, object] = {}
        for family in (family for part in parts for family in part):
            if family.name in merged:
                merged[family.name].samples.extend(family.samples)
            else:
                merged[family.name] = family
        ours = [name for name, metric in CATALOGUE.items() if metric.exposer == "node"]
        order = {name.removesuffix("_total"): at for at, name in enumerate(ours)}
        self._families = sorted(merged.values(), key=lambda family: order[family.name])

    def collect(self):
        return self._families


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
