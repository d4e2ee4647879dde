"""Two ranks on two GPUs of the stubbed library, one agent, one aggregator: what hardware does, by phase and rank.

The real nvidia-ml-py loads the stub of libnvidia-ml in the agent's own child process. The tests share one run and take
it through its troubles in order: GPU 1 falls off the bus, a call of the driver never returns, the run ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.core_wait import CoreWait
from support.installed import need
from support.node.nvml_stub import control as nvml
from support.paths import SUPPORT
from support.servers import servers

RUN = "hardware/run 1"
INTERVAL_SECONDS = 0.2
STUCK_SECONDS = 5.0  # after so long without a word the driver's process is replaced
SCRAPE_SECONDS_MAX = 1.0
IDLE = 0.7  # of the time that rank 1 computes: its GPU reports 30 % utilisation
WATTS = {0: 100.0, 1: 400.0}


class Node:
    """A node's tree, its GPUs, and the processes; each is ended by its pid."""

    def __init__(self, folder: Path):
        self.folder, self.children = folder, {}
        self.http = httpx.Client(trust_env=False, timeout=60)
        self.uuids = [nvml.uuid(gpu) for gpu in range(2)]
        library = nvml.build(folder / "lib")
        self.gpus = nvml.Control(folder / "nvml.txt")
        for gpu, percent in enumerate((5, 30)):
            self.gpus.gpu(gpu, **self._answers(gpu, percent))
            device = folder / f"sys/bus/pci/devices/0000:{0x3B + gpu:02x}:00.0"
            device.mkdir(parents=True)
            (device / "class").write_text("0x030200\n")
            (device / "vendor").write_text("0x10de\n")
        self.gpus.write()
        (folder / "pages").mkdir()
        self.environ = {
            **os.environ, "GOODPUT_DIR": str(folder / "pages"), "GOODPUT_RUN": RUN, nvml.ENVIRONMENT: str(self.gpus.path),
            "LD_LIBRARY_PATH": str(library.parent), "NO_PROXY": "127.0.0.1",
        }  # fmt: skip

    def _answers(self, gpu: int, percent: int) -> dict[str, object]:
        # No energy counter, so that the power says what was used.
        return {
            "nvmlDeviceGetUtilizationRates": f"{percent} 1",
            "gpm.1": float(percent),
            "nvmlDeviceGetPowerUsage": int(1000 * WATTS[gpu]),
            "nvmlDeviceGetTotalEnergyConsumption": "!3",
        }

    def start(self, name: str, *arguments: str, **environ: str) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self.children[name] = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environ, **environ},
            )

    def serve(self) -> None:
        ledger = f"sqlite:///{self.folder / 'ledger.db'}"
        self.start("serve", "-m", "goodput", "serve", "--listen", "127.0.0.1:0", "--ledger", ledger)
        for rank, phase in enumerate(("loader", "forward")):
            script = str(SUPPORT / "integration" / "hardware_rank.py")
            self.start(
                f"rank{rank}",
                script,
                str(self.folder),
                phase,
                self.uuids[rank],
                RANK=str(rank),
                WORLD_SIZE="2",
            )
        self.aggregator = self.address("serve")
        options = (
            f"--listen 127.0.0.1:0 --interval {INTERVAL_SECONDS} --push-interval 0.5 --gpu-driver nvml "
            f"--gpu-interval {INTERVAL_SECONDS} --sysfs {self.folder / 'sys'} --aggregator {self.aggregator}"
        )
        self.start("node", "-m", "goodput", "node", *options.split())
        self.agent = self.address("node")

    def address(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        servers.wait_until(lambda: re.search(r"http://[\d.:]+", log.read_text()), 60, f"{name} to start")
        return re.search(r"http://[\d.:]+", log.read_text()).group()

    def scrape(self) -> dict[tuple, float]:
        """{(sample's name without prefix, label values in the order of their names): value}"""
        began = time.monotonic()
        text = self.http.get(f"{self.agent}/metrics").text
        self.scrape_seconds = time.monotonic() - began
        return {
            (
                sample.name.removeprefix("goodput_"),
                *(value for _, value in sorted(sample.labels.items())),
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def ask(self, path: str):
        answer = self.http.get(f"{self.aggregator}/api/v1/{path}")
        return answer.json() if answer.status_code == 200 else None

    def core_wait(self) -> CoreWait:
        """Of this process, of the agent and of its driver's process."""
        agent = self.children["node"].pid
        return CoreWait(lambda: ("self", agent, *_children_of(agent)))

    def wait(self, condition, seconds: float, what: str):
        """The first scrape of which the condition is true."""

        def poll():
            found = self.scrape()
            return found if condition(found) else None

        return servers.wait_until(poll, seconds, what)

    def is_measured(self, found: dict) -> bool:
        return found.get(("gpu_phase_seconds_total", self.uuids[1], "forward"), 0) > 4

    def end(self) -> None:
        self.http.close()
        for child in reversed(self.children.values()):
            if child.poll() is None:
                child.kill()
            child.wait()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    need("pynvml")
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    found = Node(tmp_path_factory.mktemp("hardware"))
    try:
        found.serve()
        # Each test may be the first: GPUs are watched, and rank 1 is known to own its GPU.
        found.wait(found.is_measured, 60, "4 s in forward")
        yield found
    finally:
        found.end()


def test_activity_and_energy_are_there_by_phase(node):
    first, second = node.uuids
    found = node.scrape()
    for gpu, uuid, phase, ratio in ((0, first, "loader", 0.05), (1, second, "forward", 0.3)):
        whole = sum(value for at, value in found.items() if at[:2] == ("gpu_phase_seconds_total", uuid))
        seconds = found["gpu_phase_seconds_total", uuid, phase]
        assert seconds > 0.8 * whole and seconds > 3, found
        for unit in ("utilization", "engine"):
            active = found["gpu_activity_seconds_total", uuid, phase, unit]
            assert active == pytest.approx(ratio * seconds, rel=0.1), unit
        assert found["gpu_phase_energy_joules_total", uuid, phase] == pytest.approx(
            WATTS[gpu] * seconds, rel=0.1
        )
    assert found["gpu_up", first] == found["gpu_up", second] == 1
    assert [found["gpus", kind] for kind in ("expected", "seen", "lost")] == [2, 2, 0]
    assert found["driver_up", "nvml"] == 1


def test_lost_gpu_is_reported_with_its_rank(node):
    lost = ("health_events_total", node.uuids[1], "lost", "critical")
    xid = ("health_events_total", node.uuids[1], "xid", "critical")
    began, waited = time.monotonic(), node.core_wait()
    node.gpus.xid(1, 79)
    found = node.wait(lambda found: found.get(xid), 60, "the XID")
    told_seconds = time.monotonic() - began
    began = time.monotonic()
    node.gpus.lose(1)
    found = node.wait(lambda found: found.get(lost), 60, "the loss")
    found = node.wait(lambda found: found["gpu_up", node.uuids[1]] == 0, 60, "the GPU to be down")
    lost_seconds = time.monotonic() - began
    print(f"XID after {told_seconds:.2f} s, loss after {lost_seconds:.2f} s")
    # A few intervals, and what the scrapes take, and no core.
    assert max(told_seconds, lost_seconds) < 2.0 + waited.seconds()
    assert found[lost] == found[xid] == 1
    assert found["gpu_up", node.uuids[0]] == 1
    assert [found["gpus", kind] for kind in ("expected", "seen", "lost")] == [2, 1, 1]
    # XIDs are counted by the agent, so they outlive the GPU.
    assert any(at[0] == "gpu_xid_errors_total" and {"79", node.uuids[1]} <= set(at) for at in found)
    path = f"runs/{RUN}/health"
    reported = servers.wait_until(
        lambda: (node.ask(path) or {}).get("events", [])[1:], 60, "both events at the aggregator"
    )
    events = {event["kind"]: event for event in [*reported, *node.ask(path)["events"]]}
    assert events.keys() == {"xid", "lost"}
    for event in events.values():
        assert event["device"] == node.uuids[1] and event["severity"] == "critical"
        assert event["hits"] == [{"run": RUN, "rank": 1}]
    assert events["xid"]["code"] == 79 and events["xid"]["name"]
    assert {event["kind"] for event in node.ask("health")["events"]} == {"xid", "lost"}


def test_hung_driver_call_does_not_delay_scrapes(node):
    node.gpus.set("0.nvmlDeviceGetPowerUsage", "block")
    slowest, end, waited = 0.0, time.monotonic() + STUCK_SECONDS + 60, node.core_wait()
    while True:
        found = node.scrape()
        slowest = max(slowest, node.scrape_seconds)
        if found["driver_restarts_total", "nvml", "stuck"]:
            break
        assert time.monotonic() < end, "the driver's process was not replaced"
        time.sleep(0.05)
    print(f"slowest scrape {1000 * slowest:.0f} ms")
    assert slowest < SCRAPE_SECONDS_MAX + waited.seconds()
    assert found["driver_up", "nvml"] == 0 and found["gpu_up", node.uuids[0]] == 0
    assert found["node_collector_up", "gpus"] == found["node_collector_up", "gpu_phases"] == 1
    node.gpus.set("0.nvmlDeviceGetPowerUsage", int(1000 * WATTS[0]))
    node.wait(
        lambda found: found["driver_up", "nvml"] and found["gpu_up", node.uuids[0]], 60, "the driver again"
    )


def test_account_charges_gpu_idle_time_in_compute(node):
    (node.folder / "stop").touch()
    for rank in range(2):
        assert node.children[f"rank{rank}"].wait(120) == 0

    found = servers.wait_until(lambda: _over(node.ask(f"runs/{RUN}")), 60, "the run's end")
    scraped = node.scrape()
    by_rank = {rank["rank"]: rank["states"] for rank in found["ranks"]}
    covered = scraped["gpu_phase_seconds_total", node.uuids[1], "forward"]
    assert by_rank[1]["launch"] == pytest.approx(IDLE * covered, rel=0.05, abs=0.3)
    assert by_rank[1]["launch"] < by_rank[1]["launch"] + by_rank[1]["productive"]
    assert by_rank[0]["loader"] > 3 and by_rank[0]["launch"] < 0.1
    assert sum(found["states"].values()) == pytest.approx(found["gpu_seconds"], rel=1e-9)
    for states in by_rank.values():
        assert sum(states.values()) == pytest.approx(found["end"] - found["start"], rel=1e-6)


def test_the_agent_ends_and_leaves_no_process(node):
    agent = node.children["node"]
    children = _children_of(agent.pid)
    assert children
    agent.terminate()
    assert agent.wait(120) == 0
    servers.wait_until(lambda: not any(map(_is_driver, children)), 60, "the driver's process to end")
    assert "Traceback" not in (node.folder / "node.log").read_text()


def _over(run: dict) -> dict | None:
    return run if [rank["ended"] for rank in run["live"]] == ["finished", "finished"] else None


def _children_of(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def _is_driver(pid: int) -> bool:
    try:
        return b"goodput_exporters.gpu.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
