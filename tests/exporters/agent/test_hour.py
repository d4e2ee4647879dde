"""Up to one simulated hour of a node in seconds: devices and ranks that come and go, and no aggregator.

Everything is the agent's own but for the drivers' samples, which are handed over as a driver's process would hand them.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.node import network_tree
from support.node.agents import agent_on
from support.node.aggregator import Aggregator
from support.node.network_tree import STANDARD, counters, port
from support.node.node_rank import Rank
from support.node.node_tree import write_tree

from goodput.metrics import text_format
from goodput.rank_page import removed_pages
from goodput_exporters import agent as agent_file
from goodput_exporters.gpu.sample import Event, Gpu, Sample
from goodput_exporters.gpu.supervisor import DriverStatus, Received
from goodput_exporters.push.backlog import ROWS_MAX
from goodput_exporters.push.pusher import UNREACHABLE
from goodput_exporters.system import processes

SECOND, MS = 10**9, 10**6
HOUR = 3600
GRACE_SECONDS = 60.0


class Node:
    """Devices, ranks and GPUs around one agent. `live(seconds)` advances the clocks; devices flap at random."""

    def __init__(self, tree: Path, clock, aggregator: str, seed: int = 1):
        self.tree, self.clock, self.chance = tree, clock, random.Random(seed)
        self.agent = agent_on(tree, clock, aggregator=aggregator, grace_seconds=GRACE_SECONDS)
        self.agent.gpus._monotonic_ns = clock.monotonic_ns
        self.agent.gpus.statuses = lambda: [self.report] if self.report else []
        self.report: DriverStatus | None = None
        self.ranks: dict[int, Rank] = {}
        self.started = self.flaps = self.xids = 0
        self.lost: set[int] = set()
        self.written: dict[tuple[int, int], tuple[int, int]] = {}  # (rank, attempt): steps, ns in forward

    def add_links(self) -> list[Path]:
        for number in range(4):
            network_tree.write(
                self.tree, {**port(f"mlx5_{number}"), **counters(f"mlx5_{number}", STANDARD, 0)}
            )
            at = self.tree / f"sys/class/net/ib{number}"
            for name, text in {"carrier": "1", "carrier_changes": "1", "device/vendor": "0x15b3"}.items():
                (at / name).parent.mkdir(parents=True, exist_ok=True)
                (at / name).write_text(f"{text}\n")
        roots = self.tree / network_tree.ROOT, self.tree / "sys/class/net"
        return [*roots[0].glob("mlx5_*"), *roots[1].glob("ib*")]

    def flap(self, device: Path) -> None:
        """Away if it is here, back if it is away."""
        aside = self.tree / "aside" / device.name
        aside.parent.mkdir(exist_ok=True)
        before, after = (device, aside) if device.exists() else (aside, device)
        before.rename(after)
        self.flaps += 1

    def start(self, number: int) -> None:
        self.started += 1
        pid = 100_000 + self.started
        stat = self.tree / f"proc/{pid}/stat"
        stat.parent.mkdir()
        stat.write_text(f"{pid} (train) S " + "0 " * 18 + "777 0\n")
        self.ranks[number] = Rank(
            self.tree / "pages",
            rank=number,
            attempt=self.started,
            pid=pid,
            device_uuid=f"GPU-{number}",
            start_mono_ns=self.clock.monotonic_ns(),
            start_unix_ns=self.clock.unix_ns(),
        )

    def kill(self, number: int) -> None:
        rank = self.ranks.pop(number)
        self.note(rank)
        stat = self.tree / f"proc/{rank.identity['pid']}/stat"
        stat.unlink()
        stat.parent.rmdir()
        rank.words = None
        rank.writer.close()

    def note(self, rank: Rank) -> None:
        at = rank.identity["rank"], rank.identity["attempt"]
        self.written[at] = rank.steps, rank.steps * 400 * MS

    def sample(self, full: bool, flap_share: float = 0.06) -> None:
        """A driver's current sample: GPUs flap and some have an XID."""
        gpus, events = [], []
        for number in range(8):
            if self.chance.random() < flap_share:
                self.lost ^= {number}
                self.flaps += 1
                kind = "lost" if number in self.lost else "back"
                severity = "critical" if kind == "lost" else "info"
                events.append(Event(kind, f"GPU-{number}", self.clock.unix_ns(), severity=severity))
            lost = number in self.lost
            readings = {} if lost else {"activity/utilization": self.chance.random(), "power": 300.0}
            if events and not lost:
                self.xids += 1
                events.append(Event("xid", f"GPU-{number}", self.clock.unix_ns(), code=79))
            gpus.append(Gpu(f"GPU-{number}", index=number, readings=readings, lost=lost))
        now_ns = self.clock.monotonic_ns()
        sample = Sample("nvml", now_ns, gpus, full=full, events=events)
        heard = Received(sample, now_ns)
        before = self.report.full if self.report else None
        self.report = DriverStatus(
            "nvml", 5.0, heard if full else before, heard, False, True, True, 0.0,
            {"samples": 1, "dropped": 0, "problems": 0}, {"stuck": 0}, 0.0, 1, 0, "",
        )  # fmt: skip
        self.agent.gpus._handle_sample(sample)

    def step(self) -> None:
        """A second of each rank: two steps."""
        for rank in self.ranks.values():
            while rank.now_ns + 500 * MS <= self.clock.monotonic_ns():
                rank.step({"loader": 100 * MS, "forward": 400 * MS}, samples=1)

    def poll(self) -> None:
        self.agent.poll()

    def names(self) -> set[str]:
        """Every series of an exposition but for the events and answers of the past, which are counted for ever."""
        families = text_string_to_metric_families(self.agent.exposition(20.0).decode())
        return {
            f"{sample.name}{sorted(sample.labels.items())}"
            for family in families
            for sample in family.samples
            if not sample.name.startswith("goodput_health_events")
        }


def held() -> dict[str, int]:
    """Resources held by this process; blocks are Python's allocated memory blocks, without a cache of 1 024 labels' texts."""
    text_format._escaped.cache_clear()
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "mappings": Path("/proc/self/maps").read_text().count(".page"),
        "blocks": sys.getallocatedblocks(),
    }


@pytest.fixture
def aggregator():
    server = Aggregator()
    yield server
    server.close()


@pytest.fixture
def tree(tmp_path):
    """On /dev/shm where it exists, since thousands of pages would be written to the disk."""
    root = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path))
    write_tree(root)
    (root / "pages").mkdir()
    yield root
    shutil.rmtree(root)


@pytest.fixture(autouse=True)
def poll_links_every_time(monkeypatch):
    monkeypatch.setattr(agent_file, "LINKS_SECONDS", 0.0)


def test_flapping_devices_leak_nothing(tree, clock, aggregator, monkeypatch):
    monkeypatch.setattr(processes, "CACHED_MAX", 32)  # It is full before what is measured begins.
    node = Node(tree, clock, aggregator.url)
    node.names()
    empty = node.names()  # The second scrape has the cost of the first.
    devices = node.add_links()

    def live(seconds: int) -> None:
        for second in range(0, seconds, 3):
            clock.seconds += 3.0
            for device in devices:
                if node.chance.random() < 0.15:
                    node.flap(device)
            for number in range(8):
                if number in node.ranks and node.chance.random() < 0.2:
                    node.kill(number)
                elif number not in node.ranks and node.chance.random() < 0.5:
                    node.start(number)
            node.step()
            node.sample(full=second % 6 == 0)
            node.poll()
            if second % 6 == 0:
                node.agent.pusher.push()
                aggregator.reports.clear()
                aggregator.requests.clear()
            if second % 90 == 0:
                node.agent.exposition(20.0)

    def rest() -> dict[str, int]:
        """Everything goes, and is gone for longer than anything of it is shown."""
        for number in list(node.ranks):
            node.kill(number)
        for device in devices:
            if device.exists():
                node.flap(device)
        for seconds in (1.0, GRACE_SECONDS, 1.0, HOUR + 10.0):
            clock.seconds += seconds
            node.poll()
            node.agent.pusher.push()
        node.report, node.lost, node.written = None, set(), {}
        aggregator.reports.clear()
        aggregator.requests.clear()
        # The record of removed pages is bounded.
        assert node.names() == empty and os.listdir(tree / "pages") == [removed_pages.NAME]
        return held()

    live(600)
    before = rest()
    started, flaps = node.started, node.flaps
    live(HOUR // 2)
    after = rest()
    assert node.started - started > 500 and node.flaps - flaps > 750 and node.xids > 60
    grown = {what: after[what] - before[what] for what in before}
    print(f"{node.started - started} ranks, {node.flaps - flaps} flaps: {grown}")
    assert grown["descriptors"] == grown["threads"] == grown["mappings"] == 0
    # A key kept for each rank that came would be three pieces of it each.
    assert grown["blocks"] < 1.5 * (node.started - started), grown
    assert not node.agent.phases._attribution.ranks and not node.agent.phases._attribution.gpus


def test_an_hour_without_an_aggregator_loses_nothing(tree, clock):
    away = Aggregator()
    port_number = away.port
    away.close()
    node = Node(tree, clock, f"http://127.0.0.1:{port_number}")
    node.add_links()
    network = node.tree / "sys/class/net/ib0/carrier"
    for number in range(8):
        node.start(number)
    sizes = []
    for second in range(1, HOUR, 2):
        clock.seconds += 2.0
        if second % 600 == 599:
            number = second // 600
            node.kill(number)
            node.start(number)
            network.write_text(f"{number % 2}\n")
        node.step()
        node.sample(full=second % 5 == 0, flap_share=0.01)
        node.poll()
        if second % 60 == 1:
            assert node.agent.pusher.push() == UNREACHABLE
        if second % 900 == 899:
            sizes.append(held()["blocks"])
    rows = node.agent.pusher._backlog.rows
    assert rows <= 8 * ROWS_MAX + 6 * ROWS_MAX and node.agent.pusher._backlog.rows_thinned > 0
    # Once every rank has as many rows as it may, no more memory is used.
    assert abs(sizes[3] - sizes[2]) < 0.25 * sizes[2], sizes
    reported = node.agent.events._number
    waiting = list(node.agent.events._waiting)
    for rank in node.ranks.values():
        node.note(rank)
    back = Aggregator(port_number)
    try:
        for _ in range(20):
            node.poll()
            node.agent.pusher.push()
        arrived: dict = {}
        for report in back.reports:
            for one in report.ranks:
                at = one.identity.rank, one.identity.attempt
                arrived.setdefault(at, []).extend(one.steps)
        assert arrived.keys() == node.written.keys() and len(arrived) == 14
        for at, (steps, forward_ns) in node.written.items():
            numbers = [row.number for row in arrived[at]]
            assert numbers == sorted(set(numbers)) and (numbers or [0])[-1] == steps, at
            assert not steps or arrived[at][-1].totals[3] == forward_ns  # "forward"
        dead = {
            (one.identity.rank, one.identity.attempt)
            for report in back.reports
            for one in report.ranks
            if not one.live.alive
        }
        assert dead == {
            at for at in node.written if at[1] not in [r.identity["attempt"] for r in node.ranks.values()]
        }
        sent = [one for report in back.reports for one in report.health]
        assert sent == waiting and max(one.number for one in sent) == reported
        assert {"link_down", "link_up", "lost", "back"} <= {one.kind for one in sent}
        assert node.agent.pusher._backlog.rows == 0 and not node.agent.events.pending()
    finally:
        back.close()
