"""GPUs, links, mounts and drivers that come and go in accelerated time: no memory, descriptor or series is leaked.

The drivers are the agent's own, on stubs of NVML and libamd_smi; they run in this process, so that what they hold is
measured too. What flaps does so in fixed periods, so that each quarter of the time is like the others: the last one
may hold no more than the second. FLAPPING_SECONDS (120) is the simulated time; `make flapping` takes an hour.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.node import amd_tree, network_tree
from support.node.agents import agent_on
from support.node.amdsmi_stub import control as amdsmi
from support.node.network_tree import STANDARD, counters, port
from support.node.node_tree import wait_until
from support.node.nvml_stub.fixtures import clock, control, library, load

from goodput_exporters import agent as agent_file
from goodput_exporters.collector import NoData
from goodput_exporters.collectors.storage.filesystem_probe import FilesystemProbe
from goodput_exporters.gpu.amd.driver import Amd
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvml.driver import Nvml
from goodput_exporters.gpu.supervisor import DriverStatus, Received

FIXTURES = (clock, control, library, load)
STEP_SECONDS, SCRAPE_STEPS, REST_SECONDS = 3.0, 5, 60.0
SECONDS = int(os.environ.get("FLAPPING_SECONDS", "120"))
# What a quarter may hold more than an earlier one: pages that the allocator keeps.
RESIDENT_BYTES_MAX = 1 << 20
LINKS, MOUNTS = 4, 4
XIDS_UNTIL_FLAP = 100


class Flapping:
    """An agent, and what flaps around it. `step` advances the clocks by STEP_SECONDS."""

    def __init__(self, tree: Path, clock, nvml_control, amd_control):
        self.tree, self.clock = tree, clock
        self.nvml_control, self.amd_control = nvml_control, amd_control
        self.agent = agent_on(tree, clock, paths=(str(tree / "proc"),))
        self.agent.storage._probe = FilesystemProbe(monotonic=lambda: clock.monotonic_ns() / 1e9)
        self.options = Options(sysfs=str(tree / "sys"), procfs=str(tree / "proc"))
        self.drivers: dict[str, Nvml | Amd] = {}
        self.statuses: dict[str, DriverStatus] = {}
        self.agent.gpus.statuses = lambda: list(self.statuses.values())
        self.agent.gpus._monotonic_ns = clock.monotonic_ns
        self.steps = self.ticks = self.flaps = 0
        self.homes: dict[str, Callable[[], None]] = {}
        self.periods: list[tuple[int, Callable[[], None]]] = []
        # Two numbers of steps have no common period, so that everything meets everything.
        for number in range(LINKS):
            self.every(5 + 2 * number, self.move(tree / network_tree.ROOT / f"mlx5_{number}"))
            self.every(6 + 2 * number, self.move(tree / f"sys/class/net/ib{number}"))
        self.every(7, self.toggle_mounts)
        self.every(9, self.toggle_gpu)
        self.every(11, self.move(tree / "sys/class/drm/card1"))
        self.every(
            13, lambda: self.drivers.pop("nvml").close() if "nvml" in self.drivers else self.open("nvml")
        )
        self.every(17, lambda: self.drivers.pop("amd").close() if "amd" in self.drivers else self.open("amd"))
        self.mounted = MOUNTS
        self.mount()
        for name in ("nvml", "amd"):
            self.open(name)

    def every(self, steps: int, flap: Callable[[], None]) -> None:
        self.periods.append((steps, flap))

    def move(self, path: Path) -> Callable[[], None]:
        """Away if it is here, back if it is away."""
        aside = self.tree / "aside" / path.name

        def flap() -> None:
            aside.parent.mkdir(exist_ok=True)
            before, after = (path, aside) if path.exists() else (aside, path)
            before.rename(after)
            # The library loses the GPU with the kernel.
            if "drm" in path.parts:
                self.amd_control.set("count", int(path.exists()))

        self.homes[path.name] = flap
        return flap

    def toggle_mounts(self) -> None:
        self.mounted = (self.mounted + 1) % (MOUNTS + 1)
        self.mount()

    def mount(self) -> None:
        lines = ["27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"]
        for number in range(self.mounted):
            folder = self.tree / f"mnt{number}"
            folder.mkdir(exist_ok=True)
            device = os.stat(folder).st_dev + number
            place = f"{os.major(device)}:{os.minor(device)}"
            lines.append(
                f"{30 + number} 27 {place} / {folder} rw shared:2 - nfs4 server:/{number} rw,vers=4.2"
            )
        # One is gone while the table still has it.
        if self.mounted == MOUNTS:
            shutil.rmtree(self.tree / f"mnt{MOUNTS - 1}")
        path = self.tree / "proc/self/mountinfo"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    def toggle_gpu(self) -> None:
        if "0.*" in self.nvml_control.lines:
            self.nvml_control.find(0)
        else:
            # Each is a line of the stub's file for ever, which is memory too.
            if self.flaps < XIDS_UNTIL_FLAP:
                self.nvml_control.xid(0, 79)
            self.nvml_control.lose(0)

    def open(self, name: str) -> None:
        kind = Nvml if name == "nvml" else Amd
        driver = kind(self.options, monotonic_ns=self.clock.monotonic_ns, unix_ns=self.clock.unix_ns)
        try:
            driver.open()
            self.drivers[name] = driver
        except NoData:
            driver.close()

    def rest(self) -> None:
        """Everything is here, for as long as it takes to be seen."""
        for path in [self.tree / "aside" / name for name in os.listdir(self.tree / "aside")]:
            self.homes[path.name]()
        self.mounted = MOUNTS - 1
        self.mount()
        if "0.*" in self.nvml_control.lines:
            self.nvml_control.find(0)
        for name in {"nvml", "amd"} - self.drivers.keys():
            self.open(name)
        # Twice, since some collectors look for devices once a minute.
        for _ in range(2):
            self.clock.advance(REST_SECONDS)
            for _ in range(4):
                self.advance()
            self.series()

    def step(self) -> None:
        self.steps += 1
        for steps, flap in self.periods:
            if self.steps % steps == 0:
                flap()
                self.flaps += 1
        self.advance()

    def advance(self) -> None:
        self.ticks += 1
        self.clock.advance(STEP_SECONDS)
        for name in ("nvml", "amd"):
            self.sample(name, full=self.ticks % 2 == 0)
        self.agent.poll()

    def sample(self, name: str, full: bool) -> None:
        """As the agent's thread of a driver would."""
        before = self.statuses.get(name) or DriverStatus(name, 5.0, settled=True)
        driver = self.drivers.get(name)
        if driver is None:
            self.statuses[name] = DriverStatus(name, 5.0, before.full, before.fast, settled=True)
            return
        sample = driver.sample(full)
        received = Received(sample, self.clock.monotonic_ns())
        kept = (received, before.fast) if full else (before.full, received)
        self.statuses[name] = DriverStatus(name, 5.0, *kept, settled=True, up=True, age_seconds=0.0)
        self.agent.gpus._handle_sample(sample)

    def series(self) -> set[str]:
        families = text_string_to_metric_families(self.agent.exposition(20.0).decode())
        return {
            f"{sample.name}{sorted(sample.labels.items())}"
            for family in families
            for sample in family.samples
        }

    def events(self) -> int:
        return sum(self.agent.events._counts.values())

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.close()
        self.agent.stop()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def held(node: Flapping) -> dict:
    """What is held while everything is here: names of series, descriptors, bytes of resident memory."""
    node.rest()
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": descriptors(),
        "resident": pages * resource.getpagesize(),
        "series": node.series(),
    }


@pytest.fixture
def node(tree, clock, control, load, monkeypatch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rocm")
    amdsmi.build(folder / "lib")
    amd_control = amdsmi.Control(folder / "amdsmi.txt")
    amd_control.gpu(0, "0000:1b:00.0")
    amd_control.write()
    monkeypatch.setenv("ROCM_PATH", str(folder))
    monkeypatch.setenv(amdsmi.ENVIRONMENT, str(amd_control.path))
    monkeypatch.setattr(agent_file, "LINKS_SECONDS", 0.0)
    amd_tree.write_tree(tree)
    for number in range(LINKS):
        network_tree.write(tree, {**port(f"mlx5_{number}"), **counters(f"mlx5_{number}", STANDARD, 0)})
        for name, text in {"carrier": "1", "carrier_changes": "1", "device/vendor": "0x15b3"}.items():
            amd_tree.write(tree / f"sys/class/net/ib{number}", {name: f"{text}\n"})
    load()
    node = Flapping(tree, clock, control, amd_control)
    yield node
    node.close()


def test_an_hour_of_flapping_holds_no_more_at_its_end(node, capsys, caplog):
    caplog.set_level(logging.ERROR, "goodput.node")  # pytest keeps every line.
    for _, flap in node.periods:  # Everything once, so that every kind of event has been counted.
        flap()
        node.advance()
    node.rest()
    steps, found = int(SECONDS / STEP_SECONDS) // 4, []
    for _ in range(4):
        for at in range(steps):
            node.step()
            if at % SCRAPE_STEPS == 0:
                node.series()
        found.append(held(node))
    second, last = found[1], found[3]
    with capsys.disabled():
        for quarter in found if SECONDS > 1000 else ():
            shown = quarter | {"series": len(quarter["series"])}
            print(f"\n{shown}, {node.flaps} flaps and {node.events()} events in all", end="")
    assert node.flaps > steps and node.events() > steps
    assert last["series"] ^ second["series"] == set()
    # The clock is simulated and the probes of mounts are not: on a busy machine one may not have answered yet, and its
    # pipe is closed by the scrape after that.
    wait_until(lambda: node.series() and descriptors() <= second["descriptors"])
    assert last["resident"] - second["resident"] <= RESIDENT_BYTES_MAX
