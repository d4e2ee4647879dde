"""The node agent: reads rank pages every second, queues new reports for the pusher, answers scrapes.

Whatever a collector, a page or the aggregator does becomes a series; it ends neither the polling nor a scrape. A scrape
takes at most 100 ms, even if a collector hangs; concurrent scrapes share one result. Beside 8 GPUs, 8 NICs and 8
ranks of a step a second: 1.3 ms of CPU per poll, 1.3 ms per GPU sample, 10 ms per scrape (bench/node/agent.py).

    with Agent("/run/goodput", aggregator="http://127.0.0.1:9471") as agent:
        print(agent.exposition().decode())
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from goodput import __version__
from goodput.metrics import Families
from goodput.metrics.text_format import TextWriter
from goodput.metrics.writer import Writer
from goodput.otlp.settings import OtlpSettings, Samples
from goodput.rank_page import page
from goodput.rank_page.removed_pages import RemovedPages
from goodput.rank_page.shared_folders import pages_beside
from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collector_runner import CollectorRunner, run_collectors
from goodput_exporters.collectors import discover
from goodput_exporters.directory_lock import DirectoryInUse, DirectoryLock
from goodput_exporters.events.event_queue import EventQueue
from goodput_exporters.events.link_monitor import LinkMonitor
from goodput_exporters.gpu.sample import Sample
from goodput_exporters.nccl_ras import RasQueries
from goodput_exporters.page_directory import ADVICE, KINDS, problems
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials
from goodput_exporters.push.pusher import Pusher
from goodput_exporters.push.stacks import Stacks
from goodput_exporters.server.authentication import NodeAuthenticator
from goodput_exporters.stack_sampling import StackSampling

if TYPE_CHECKING:
    # Not imported at run time: `discover` replaces a collector that cannot be imported by one that fails.
    from goodput_exporters.collectors.attribution.collector import Attribution
    from goodput_exporters.collectors.gpu_phases.collector import GpuPhases
    from goodput_exporters.collectors.gpus.collector import Gpus
    from goodput_exporters.collectors.numa.collector import Numa
    from goodput_exporters.collectors.pod_resources.collector import PodResources
    from goodput_exporters.collectors.ranks.collector import Ranks
    from goodput_exporters.collectors.storage.collector import Storage
    from goodput_exporters.collectors.textfile.collector import Textfile

log = logging.getLogger("goodput.node")

# The rest of 100 ms is for writing the text.
COLLECT_SECONDS_MAX = 0.08
# For the first exposition: there is no earlier result to serve for a late collector.
ONCE_SECONDS_MAX = 2.0
STALE_POLLS, STALE_SECONDS_MIN = 5, 10.0
JOIN_SECONDS_MAX = 1.0
LINKS_SECONDS = 5.0


class Agent:
    """Further keywords are fields of collector.Settings. `compat` adds dcgm-exporter's names on /metrics ("dcgm")
    or replaces ours by them there ("dcgm-only"). `failure` is why it stopped, None while it runs."""

    def __init__(
        self,
        directory: str | None = None,
        *,
        aggregator: str | None = None,
        credentials: Credentials = NONE_NEEDED,
        authenticator: NodeAuthenticator | None = None,
        push_interval_seconds: float = 5.0,
        py_spy: bool = False,
        sample_stacks: bool = False,
        nccl_ras: str = "",
        otlp: OtlpSettings | None = None,
        compat: str = "",
        node: str | None = None,
        version: str = __version__,
        **settings,
    ):
        self.settings = Settings(directory or page.default_directory(), **settings)
        self.node, self.version = node or socket.gethostname(), version
        self.failure: str | None = None
        self.compat = compat
        self.authenticator = authenticator or NodeAuthenticator()
        self.runners = {kind.name: CollectorRunner(kind(self.settings)) for kind in discover()}
        collectors = {name: runner.collector for name, runner in self.runners.items()}
        self.ranks, self.gpus = cast("Ranks", collectors["ranks"]), cast("Gpus", collectors["gpus"])
        self.storage = cast("Storage", collectors["storage"])
        self.phases = cast("GpuPhases", collectors["gpu_phases"])
        self.phases.ranks = self.ranks.now
        cast("Numa", collectors["numa"]).ranks = self.ranks.processes
        attribution = cast("Attribution", collectors["attribution"])
        attribution.ranks, attribution.gpus = self.ranks.processes, self.gpus.current
        self.gpus.pods_of = cast("PodResources", collectors["pod_resources"]).pods_of
        if compat:
            names = self.gpus.dcgm_names()
            cast("Textfile", collectors["textfile"]).reserved = dict.fromkeys(names, f"--compat {compat}")
        unix_ns = self.settings.unix_ns
        self.events = EventQueue(unix_ns, is_sent=bool(aggregator))
        self.links = LinkMonitor(self.settings)
        self.gpus.on_sample = self._receive
        self.stacks = self.pusher = None
        if aggregator:
            of_ranks = {"refusal": self.ranks.refusal, "unix_ns": unix_ns}
            self.stacks = Stacks(self.ranks.owns, **of_ranks) if py_spy else None
            self.pusher = Pusher(
                aggregator,
                self.node,
                credentials=credentials,
                interval_seconds=push_interval_seconds,
                stacks=self.stacks,
                health=self.events,
                unix_ns=unix_ns,
                agent_version=version,
            )
        self.stack_sampling = StackSampling(self.settings.procfs) if sample_stacks else None
        self.ras = RasQueries(nccl_ras) if nccl_ras else None
        self.otlp = self._otlp_exporter(otlp) if otlp else None
        self._removed = RemovedPages(self.settings.directory)
        parts = urlsplit(aggregator or "")
        self._sent_to = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._directory_lock = DirectoryLock(self.settings.directory)
        self._directory_problems: dict[str, str] = {}
        self._scraping = threading.Lock()
        self._writers: dict[type[Writer], Writer] = {}
        self._parts: list[Families] = []  # of the last scrape
        self._bodies: dict[type[Writer], bytes] = {}  # likewise, in the requested formats
        self._collected_ns = (0, 0)  # likewise, when: by the monotonic and the wall clock
        self._scrape_seconds: float | None = None
        self._stopping = threading.Event()
        self._polled_ns, self._links_ns = time.monotonic_ns(), 0
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    # -- lifecycle

    def start(self) -> None:
        """Poll once and start the threads. Raises DirectoryInUse if another agent uses the directory."""
        self._directory_lock.hold()
        self._check_directory()
        for text in [*self._directory_warnings(), *pages_beside([self.settings.directory], None)]:
            log.warning("%s", text)
        self.poll()
        # So that the first scrape has an earlier result for late collectors.
        run_collectors(self.runners.values(), time.monotonic_ns() + int(ONCE_SECONDS_MAX * 1e9))
        self._thread.start()
        self.gpus.start()
        for part in (self.pusher, self.otlp):
            if part:
                part.start()

    def stop(self, flush_seconds: float = 3.0) -> None:
        """Poll once more, push what is queued for at most `flush_seconds`, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS_MAX)
            self.poll()
        if self.pusher:
            self.pusher.stop(flush_seconds)
        for part in (self.stacks, self.stack_sampling, self.ras, self.otlp):
            if part:
                part.stop()
        for collector in (self.gpus, self.storage, self.ranks):
            collector.close()
        self._directory_lock.release()

    def __enter__(self) -> Agent:
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def once(self) -> str:
        """Poll once and return one exposition; changes nothing on the node."""
        self._safely(self.ranks.poll)
        self.gpus.start()
        try:
            if not self.gpus.settle():
                pending = [status.name for status in self.gpus.statuses() if not status.settled]
                log.warning("GPU drivers without an answer yet: %s", ", ".join(pending))
            self._poll_links()
            return self.exposition(ONCE_SECONDS_MAX).decode()
        finally:
            self.gpus.close()

    # -- polling

    def poll(self) -> None:
        """Queue new reports for the pusher and remove finished pages."""
        reports = self._safely(self.ranks.poll)
        if self.pusher and reports:
            self.pusher.add([self.phases.with_gpu_totals(report) for report in reports])
        sampling, ras = self.stack_sampling, self.ras
        if sampling and not self._stopping.is_set():
            self._safely(lambda: sampling.poll(self.ranks.followed()))
        if ras and not self._stopping.is_set():
            self._safely(lambda: ras.poll(self.ranks.followed(), self.settings.monotonic_ns()))
        self._poll_links()
        is_acknowledged = self.pusher.is_acknowledged if self.pusher else (lambda key: True)
        removed = self._safely(lambda: self.ranks.sweep(is_acknowledged)) or ()
        if removed:
            # A page is also removed unacknowledged, after a day.
            sent = self._sent_to if self.pusher and all(map(is_acknowledged, removed)) else ""
            self._removed.add(dict.fromkeys(key[0] for key in removed), self.settings.unix_ns(), sent)
        for key in removed:
            self.phases.forget(key)
            if self.pusher:
                self.pusher.forget(key)
        self._polled_ns = time.monotonic_ns()

    def health(self) -> str | None:
        """What is wrong, None while polling works."""
        age_seconds = (time.monotonic_ns() - self._polled_ns) / 1e9
        if age_seconds > max(STALE_SECONDS_MIN, STALE_POLLS * self.settings.interval_seconds):
            return f"the rank pages were last read {age_seconds:.0f} s ago"
        return self.failure

    def warnings(self) -> str:
        """What the operator should know while polling works, a line each."""
        of_directory = self._directory_warnings()
        return "\n".join(
            [*of_directory, *self.ranks.refusals(), *(self.pusher.warnings() if self.pusher else ())]
        )

    def _check_directory(self) -> None:
        # The host's mounts may be seen through --procfs, but the folder is this process's.
        self._directory_problems = problems(self.settings.directory)

    def _directory_warnings(self) -> list[str]:
        if not self._directory_problems:
            return []
        texts = "; ".join(self._directory_problems.values())
        return [f"the folder of rank pages, {self.settings.directory}, {texts}. To bound it, {ADVICE}"]

    def _run(self) -> None:
        while not self._stopping.wait(self.ranks.wait_seconds):
            try:
                self._directory_lock.hold()
            except DirectoryInUse as error:
                self.failure = str(error)
                self._stopping.set()
                return
            self.poll()

    def _safely(self, act: Callable):
        """The result of `act`; None if it fails, which counts as a failure of the collector `ranks`."""
        try:
            return act()
        except NoData:
            pass
        except Exception as error:
            self.runners["ranks"].fail(f"poll failed: {error!r}")
        return None

    def _receive(self, sample: Sample) -> None:
        """Process a GPU driver's sample, in that driver's thread."""
        if sample.full:
            self.events.set_possible("gpu", self.gpus.possible_events(sample), sample.driver)
        try:
            self.phases.add_sample(sample)
        finally:
            for event in sample.events:
                self.events.add(event, self.phases.ranks_on(event.device), sample.driver)

    def _poll_links(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._links_ns < LINKS_SECONDS * 1e9:
            return
        self._links_ns = now_ns
        try:
            events = [*self.links.poll(), *self.gpus.restart_events()]
            drivers = [status.name for status in self.gpus.statuses() if not status.absent]
            for kind, devices in {**self.links.devices(), "driver": drivers}.items():
                self.events.set_devices(kind, devices)
            for event in events:
                self.events.add(event, self.ranks.living())
        except Exception as error:
            self.runners["infiniband"].fail(f"polling links failed: {error!r}")

    # -- the scrape

    def exposition(
        self, seconds_max: float = COLLECT_SECONDS_MAX, format: type[Writer] = TextWriter
    ) -> bytes:
        """All series, by default in the Prometheus text format; for a late collector those of its last run."""
        is_alone = self._scraping.acquire(blocking=False)
        if not is_alone:
            self._scraping.acquire()
        try:
            if is_alone or not self._parts:
                start_ns = self._collect(seconds_max)
                self._write(format)
                self._scrape_seconds = (time.monotonic_ns() - start_ns) / 1e9
            return self._write(format)
        finally:
            self._scraping.release()

    def samples(self, age_seconds_max: float) -> Samples:
        """The series of the last scrape, or if it is older than this those of now."""
        with self._scraping:
            if not self._parts or time.monotonic_ns() - self._collected_ns[0] > age_seconds_max * 1e9:
                self._collect(COLLECT_SECONDS_MAX)
            return Samples(self._collected_ns[1], [part.rows for part in self._parts])

    def _collect(self, seconds_max: float) -> int:
        """Replace the parts; returns when it began, by the monotonic clock."""
        start_ns = time.monotonic_ns()
        parts = run_collectors(self.runners.values(), start_ns + int(seconds_max * 1e9))
        self._collected_ns = start_ns, self.settings.unix_ns()
        self._check_directory()
        self._parts, self._bodies = [*parts, self._own_series(parts)], {}
        return start_ns

    def _otlp_exporter(self, otlp: OtlpSettings):
        from goodput.otlp.exporter import OtlpExporter

        names = {"service.name": "goodput-node", "service.instance.id": self.node, "host.name": self.node}
        # Half: the samples of one scrape are not exported twice.
        age_seconds_max = otlp.interval_seconds / 2
        return OtlpExporter(otlp, "goodput_node", lambda: self.samples(age_seconds_max), names)

    def _write(self, format: type[Writer]) -> bytes:
        if format not in self._bodies:
            parts = self._parts
            if self.compat:
                others = Families("node")
                others.foreign = self.gpus.dcgm_families(self.node)
                parts = [others] if self.compat == "dcgm-only" else [*parts, others]
            self._bodies[format] = self._writers.setdefault(format, format()).write(parts)
        return self._bodies[format]

    def _own_series(self, parts: list[Families]) -> Families:
        families = Families("node")
        families.add("goodput_node_info", {"host": self.node, "version": self.version}, 1)
        for kind in KINDS:
            found = kind in self._directory_problems
            families.add("goodput_node_page_directory_problem", {"problem": kind}, int(found))
        for runner in self.runners.values():
            runner.describe(families)
        own = (self.pusher, self.otlp, self.authenticator, self.stacks, self.stack_sampling, self.ras)
        for part in (*own, self.events):
            if part:
                part.collect(families)
        if self._scrape_seconds is not None:
            families.add("goodput_node_scrape_seconds", {}, self._scrape_seconds)
        families.add_process("goodput_node")
        counts = sum((part.count_by_level() for part in (*parts, families)), Counter())
        families.add_counts("goodput_node_series", "level", counts)
        return families
