"""A node's hardware and its agent over the whole time: every series that alerts ask for, as arrays.

In: a node, the moments, how busy its GPUs are at each, what happens to it (Change), when its agent is away. Out: by
series an array of values, NaN where it is absent. Names and labels are held against the catalogue as they are made.
Counters are rates summed up; those that the agent itself counts begin at 0 with each of its starts.
The noise is that of sound hardware: the power limit reached, a day's curve of temperature, some correctable ECC, a
handful of retransmits, a disk that is full of work while a checkpoint is saved. Cost: about 10 ns a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.alert_replay.reports import DEVICE, Key, gpu_of
from goodput.metrics import CATALOGUE

# What the agent counts itself, rather than the kernel or a driver.
AGENTS_OWN = {
    *("goodput_gpu_xid_errors_total", "goodput_node_cpu_seconds_total", "goodput_driver_restarts_total"),
    *("goodput_node_pushes_total", "goodput_node_push_failures_total", "goodput_node_rows_thinned_total"),
    *("goodput_node_token_reload_errors_total", "goodput_health_events_dropped_total"),
    *("goodput_driver_cpu_seconds_total", "goodput_node_collector_errors_total"),
}
COLLECTORS = ("ranks", "gpu", "infiniband", "ethernet", "host", "filesystems")
DAY = 86_400.0


@dataclass(frozen=True)
class Change:
    """From `at` to `until` something is otherwise on a node, in all series of this name and these labels.

    how: set (a gauge is `value`), rate (a counter grows by so much more a second), jump (it grows by `value` at once,
    at `at`), born (it is there from then on only, with `value` at once).
    """

    node: str
    name: str
    labels: tuple[tuple[str, str], ...]
    at: float
    until: float
    how: str
    value: float


class Node:
    """The series of one node. `busy` is by GPU, 0 to 1 at each moment; `saving` is 1 while a rank saves."""

    def __init__(
        self, name: str, gpus: int, times: np.ndarray, busy: np.ndarray, saving: np.ndarray, seed: int
    ):
        self.name, self.times, self.busy, self.saving = name, times, busy, saving
        self.steps = np.diff(times, prepend=times[0])
        self.gauges: dict[Key, np.ndarray] = {}
        self.rates: dict[Key, np.ndarray] = {}
        self.jumps: dict[Key, np.ndarray] = {}
        self.births: dict[Key, float] = {}
        self._rng = np.random.default_rng(seed)
        self._day = np.sin(2 * np.pi * times / DAY)
        for index in range(gpus):
            self._gpu(index)
        self._drivers(gpus)
        self._agent()
        self._network()
        self._infiniband()
        self._host()

    def change(self, change: Change) -> None:
        """Make it so. KeyError where there is no such series, but for those that are born."""
        during = (self.times >= change.at) & (self.times < change.until)
        if change.how == "born":
            labels = dict(change.labels)
            self.rate(change.name, 0, **labels)
            key = _key(change.name, labels)
            self.births[key] = min(change.at, self.births.get(key, np.inf))
            self._jump(key, change.at, change.value)
            return
        # Gauges that are set need not have been there.
        if change.how == "set" and not self._of(self.gauges, change):
            self.gauge(change.name, np.nan, **dict(change.labels))
        keys = self._of(self.gauges if change.how == "set" else self.rates, change)
        if not keys:
            raise KeyError(f"node {self.name} has no {change.name} with {dict(change.labels)}")
        for key in keys:
            if change.how == "set":
                self.gauges[key][during] = change.value
            elif change.how == "rate":
                self.rates[key][during] += change.value
            else:
                self._jump(key, change.at, change.value)

    def series(self, restarts: list[float]) -> dict[Key, np.ndarray]:
        """Everything; `restarts` are the moments at which its agent began anew."""
        found = dict(self.gauges)
        for key, rate in self.rates.items():
            grown = np.cumsum(rate * self.steps + self.jumps.get(key, 0.0))
            if key[0] in AGENTS_OWN:
                for at in restarts:
                    after = self.times >= at
                    if after.any():
                        grown[after] -= grown[after][0]
            if key in self.births:
                # What was born in an earlier life of the agent is unknown to the next one.
                gone = [at for at in restarts if at > self.births[key]]
                there = self.times >= self.births[key]
                grown = np.where(there & (self.times < min(gone, default=np.inf)), grown, np.nan)
            found[key] = grown
        return found

    def gauge(self, name: str, value, **labels: str) -> None:
        self.gauges[_key(name, labels)] = np.broadcast_to(value, self.times.shape).astype(float)

    def rate(self, name: str, value, **labels: str) -> None:
        self.rates.setdefault(_key(name, labels), np.broadcast_to(value, self.times.shape).astype(float))

    def _of(self, where: dict, change: Change) -> list[Key]:
        wanted = set(change.labels)
        return [key for key in where if key[0] == change.name and wanted <= set(key[1])]

    def _jump(self, key: Key, at: float, value: float) -> None:
        index = int(np.searchsorted(self.times, at))
        if index < len(self.times):
            self.jumps.setdefault(key, np.zeros(len(self.times)))[index] += value

    def _noise(self, size: float) -> np.ndarray:
        return size * self._rng.standard_normal(len(self.times))

    def _handful(self, name: str, each_day: float, most: int, **labels: str) -> None:
        """Now and then some, as sound hardware has them."""
        self.rate(name, 0, **labels)
        for at in self._rng.uniform(0, self.times[-1], self._rng.poisson(each_day * self.times[-1] / DAY)):
            self._jump(_key(name, labels), at, int(self._rng.integers(1, most + 1)))

    def _gpu(self, index: int) -> None:
        gpu, busy = gpu_of(self.name, index), self.busy[index]
        on = {"gpu": gpu}
        told = {
            "index": str(index),
            "model": DEVICE,
            "pci": f"0000:{index:02x}:00.0",
            "numa": str(index // 4),
        }
        self.gauge("goodput_gpu_info", 1, gpu=gpu, **told, driver="nvml", parent="", profile="")
        self.gauge("goodput_gpu_up", 1, gpu=gpu)
        for unit, share in {
            "utilization": 0.97,
            "engine": 0.95,
            "sm": 0.8,
            "tensor": 0.45,
            "dram": 0.5,
        }.items():
            active = np.clip(busy * share + self._noise(0.01) * (busy > 0), 0, 1)
            self.gauge("goodput_gpu_activity_ratio", active, gpu=gpu, unit=unit)
        self.gauge("goodput_gpu_false_zero", 0, **on)
        capped = self._rng.random(len(self.times)) < 0.35 * busy
        # A dip of a second: a scrape that is one of two in a window must not make minutes of it.
        hot = (self._rng.random(len(self.times)) < 0.003 * busy * (1 + self._day)) & (self.steps <= 15)
        for reason, held in {"power": capped, "thermal": hot, "idle": busy < 0.05}.items():
            self.gauge("goodput_gpu_throttled", held, gpu=gpu, reason=reason)
        for reason in ("hw_thermal", "hw_slowdown", "hw_power_brake"):
            self.gauge("goodput_gpu_throttled", 0, gpu=gpu, reason=reason)
        for reason, share in {"power": 0.35, "thermal": 0.005, "board_limit": 0, "reliability": 0}.items():
            self.rate("goodput_gpu_throttle_seconds_total", share * busy, gpu=gpu, reason=reason)
        for sensor, cold in {"core": 34, "memory": 42}.items():
            degrees = cold + 32 * busy + 4 * self._day + self._noise(0.5)
            self.gauge("goodput_gpu_temperature_celsius", degrees, gpu=gpu, sensor=sensor)
        self.gauge("goodput_gpu_power_watts", 110 + 570 * busy + self._noise(8), **on)
        self.gauge("goodput_gpu_power_limit_watts", 700, **on)
        self.gauge("goodput_gpu_clock_hertz", (1.98 - 0.1 * capped) * 1e9, gpu=gpu, clock="sm")
        self.gauge("goodput_gpu_recovery_action", 1, gpu=gpu, action="none")
        for kind in ("pending", "failure"):
            self.gauge("goodput_gpu_rows_remapped", 0, gpu=gpu, kind=kind)
        self.gauge("goodput_gpu_rows_remapped", index % 3 == 0, gpu=gpu, kind="correctable")
        for kind in ("current", "max"):
            self.gauge("goodput_gpu_pcie_lanes", 16, gpu=gpu, kind=kind)
        # An idle link sleeps.
        self.gauge("goodput_gpu_pcie_generation", np.where(busy > 0.05, 5, 1), gpu=gpu, kind="current")
        self.gauge("goodput_gpu_pcie_generation", 5, gpu=gpu, kind="max")
        self._handful("goodput_gpu_pcie_replays_total", 0.2, 2, gpu=gpu)
        for scope in ("volatile", "aggregate"):
            self._handful("goodput_gpu_ecc_errors_total", 0.3, 3, gpu=gpu, kind="correctable", scope=scope)
            self.rate("goodput_gpu_ecc_errors_total", 0, gpu=gpu, kind="uncorrectable", scope=scope)
        self._handful("goodput_gpu_nvlink_errors_total", 0.1, 2, gpu=gpu, kind="replay")

    def _drivers(self, gpus: int) -> None:
        self.gauge("goodput_driver_up", 1, driver="nvml")
        self.gauge("goodput_driver_processes_unkillable", 0, driver="nvml")
        self.gauge("goodput_driver_memory_bytes", 20e6, driver="nvml")
        self.rate("goodput_driver_cpu_seconds_total", 0.003, driver="nvml")
        for reason in ("stuck", "died", "memory"):
            self.rate("goodput_driver_restarts_total", 0, driver="nvml", reason=reason)
        for kind, count in {"expected": gpus, "seen": gpus, "lost": 0}.items():
            self.gauge("goodput_gpus", count, kind=kind)

    def _agent(self) -> None:
        self.gauge("goodput_node_info", 1, host=self.name, version="1.0")
        for collector in COLLECTORS:
            self.gauge("goodput_node_collector_up", 1, collector=collector)
        self.gauge("goodput_node_memory_bytes", 41e6 + self._noise(4e5))
        self.gauge("goodput_node_backlog_rows", 8 * self.busy.max(axis=0, initial=0))
        self.rate("goodput_node_cpu_seconds_total", 0.0105)
        for outcome in ("accepted", "rejected", "unreachable"):
            self.rate("goodput_node_pushes_total", 0.2 * (outcome == "accepted"), outcome=outcome)
        self.rate("goodput_node_rows_thinned_total", 0)
        self.rate("goodput_node_token_reload_errors_total", 0)
        for file in ("tokens", "certificate"):
            self.gauge("goodput_node_reload_failing", 0, file=file)
        self.rate("goodput_health_events_dropped_total", 0)

    def _network(self) -> None:
        traffic = self.busy.mean(axis=0) if len(self.busy) else np.zeros(len(self.times))
        for device, up, speed in (("eth0", 1, 12.5e9), ("eth1", 0, None), ("docker0", 1, None)):
            self.gauge("goodput_network_up", up, device=device)
            self.rate("goodput_network_carrier_changes_total", 0, device=device)
            if speed:
                self.gauge("goodput_network_speed_bytes_per_second", speed, device=device)
            for direction in ("receive", "transmit"):
                rate = (0.6e9 * traffic + 6e9 * self.saving) * (device == "eth0") + 1e4
                self.rate("goodput_network_bytes_total", rate, device=device, direction=direction)
                self.rate("goodput_network_packets_total", rate / 4000, device=device, direction=direction)
        # Containers come and go all day.
        self._handful("goodput_network_carrier_changes_total", 60, 8, device="docker0")
        paused = {"device": "eth0", "direction": "receive", "priority": "3"}
        self.rate("goodput_network_pause_seconds_total", 0.002 * traffic + 0.02 * self.saving, **paused)

    def _infiniband(self) -> None:
        traffic = self.busy.mean(axis=0) if len(self.busy) else np.zeros(len(self.times))
        for device, rate, share in (("mlx5_0", 50e9, 0.5), ("mlx5_9", 25e9, 0.02)):
            port = {"device": device, "port": "1"}
            told = {"link_layer": "InfiniBand", "driver": "mlx5_core", "netdev": "", "pci": "", "numa": "0"}
            told |= {"firmware": "28.40", "board": f"MT_{device}", "node_guid": f"{self.name}:{device}"}
            self.gauge("goodput_infiniband_info", 1, **port, **told)
            self.gauge("goodput_infiniband_up", 1, **port)
            self.gauge("goodput_infiniband_rate_bytes_per_second", rate, **port)
            for direction in ("receive", "transmit"):
                sent = rate * share * traffic * np.clip(1 + self._noise(0.05), 0, 1.2)
                self.rate("goodput_infiniband_bytes_total", sent, **port, direction=direction)
                self.rate("goodput_infiniband_packets_total", sent / 4096, **port, direction=direction)
            marked = rate * share * traffic / 4096 * 0.004
            self.rate(
                "goodput_infiniband_congestion_total", marked, **port, kind="np_ecn_marked_roce_packets"
            )
            self.rate("goodput_infiniband_congestion_total", 2 * traffic, **port, kind="out_of_buffer")
            self.rate("goodput_infiniband_errors_total", 0, **port, kind="link_downed")
            self._handful("goodput_infiniband_retransmits_total", 4, 40, **port, kind="local_ack_timeout_err")

    def _host(self) -> None:
        traffic = self.busy.mean(axis=0) if len(self.busy) else np.zeros(len(self.times))
        pressures = {
            ("cpu", "some"): 0.12 * traffic,
            ("io", "some"): 0.02 + 0.4 * self.saving,
            ("io", "full"): 0.004 + 0.3 * self.saving,
            ("memory", "some"): 0.001 + 0 * traffic,
            ("memory", "full"): 0 * traffic,
        }
        for (resource, kind), rate in pressures.items():
            self.rate("goodput_host_pressure_seconds_total", rate, resource=resource, kind=kind)
        self.rate("goodput_host_tcp_retransmits_total", 0.4 + np.abs(self._noise(0.3)))
        self._handful("goodput_host_tcp_retransmits_total", 6, 500)
        disk = {"device": "nvme0n1"}
        self.rate("goodput_host_disk_busy_seconds_total", 0.05 + 0.9 * self.saving, **disk)
        operations = 150 + 3000 * self.saving
        self.rate("goodput_host_disk_operations_total", operations, **disk, direction="write")
        slow = 0.0004 + 0.02 * self.saving
        self.rate("goodput_host_disk_operation_seconds_total", operations * slow, **disk, direction="write")
        # Scratch fills with checkpoints, and old ones are removed every night; the shared one hardly moves.
        filling = (self.times % DAY) / DAY
        for mount, size, free in (
            ("/scratch", 7e12, 0.7 - 0.48 * filling),
            ("/shared", 2e15, 0.31 - 0 * filling),
        ):
            kept = np.clip(free + self._noise(0.002), 0, 1)
            self.gauge("goodput_filesystem_info", 1, mount=mount, fstype="xfs", source=mount)
            self.gauge("goodput_filesystem_up", 1, mount=mount)
            self.gauge("goodput_filesystem_size_bytes", size, mount=mount)
            self.gauge("goodput_filesystem_available_bytes", size * kept, mount=mount)
            self.gauge("goodput_filesystem_inodes", 1e9, mount=mount, kind="total")
            self.gauge("goodput_filesystem_inodes", 6e8, mount=mount, kind="free")


def _key(name: str, labels: dict[str, str]) -> Key:
    metric = CATALOGUE[name]
    if metric.exposer != "node" or set(metric.labels) != set(labels):
        raise KeyError(f"{name} with labels {sorted(labels)}; the catalogue says {metric}")
    return name, tuple(sorted(labels.items()))
