"""What the node agents of the story's cluster serve: ranks, GPUs, links, hosts, and themselves.

In: the jobs of cluster.py and the moment. Out: (series, labels, value) of each node, under the names and labels of
the catalogue. It is simulated, not the agent's code; load follows what the ranks on the node do. A series that the
catalogue does not have is a KeyError.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from dashboards.render import placement
from dashboards.render.cluster import COLUMN, DEVICE, GPUS_PER_NODE, PHASES, Job, Rank
from goodput.histograms.histogram import LATENCY_BOUNDS

BYTES_OF_GPU = 80 << 30
LINE_RATE = 50e9  # bytes per second of a 400 Gbit port
Labels = dict[str, str]
Sample = tuple[str, Labels, float]
# Watts and activity of a GPU by what its rank is in.
LOADS = {
    "forward": {"power": 640, "sm": 0.93, "tensor": 0.58, "dram": 0.42},
    "backward": {"power": 665, "sm": 0.95, "tensor": 0.61, "dram": 0.48},
    "optimizer": {"power": 430, "sm": 0.88, "tensor": 0.04, "dram": 0.81},
    "communication": {"power": 290, "sm": 0.55, "tensor": 0.0, "dram": 0.2},
    "evaluation": {"power": 520, "sm": 0.85, "tensor": 0.45, "dram": 0.4},
}
IDLE = {"power": 118, "sm": 0.02, "tensor": 0.0, "dram": 0.01}


class Node:
    """One node: its counters, which only grow."""

    def __init__(self, name: str, lost: int | None = None):
        self.name, self.lost = name, lost
        self.random = random.Random(name)
        self.counts: dict[tuple, float] = {}
        self.phases_before: dict[str, list[int]] = {}
        self.gpus = [f"GPU-{name[-2:]}{index}c4f1" for index in range(GPUS_PER_NODE)]
        self.heat = dict.fromkeys(self.gpus, 45.0)
        self.then: float | None = None

    def series(self, now: float, jobs: list[Job], length: float) -> Iterator[Sample]:
        """Everything that the node's agent serves now; called with growing moments."""
        passed = now - self.then if self.then is not None else 0.0
        self.then = now
        here = {rank.gpu: (job, rank) for job in jobs for rank in job.ranks if rank.node == self.name}
        living = {gpu: one for gpu, one in here.items() if one[0].alive and not one[0].ended}
        for job, rank in here.values():
            if not job.ended or now - job.end < 60:
                yield from self._rank(job, rank, now)
        busy = 0.0
        for index, gpu in enumerate(self.gpus):
            job, rank = living.get(gpu, (None, None))
            gone = index == self.lost or self._is_lost(now, gpu, jobs)
            for sample in self._gpu(index, gpu, job, rank, gone, now, passed):
                busy += sample[2] / GPUS_PER_NODE if sample[0:2] == ("busy", {}) else 0
                if sample[0] != "busy":
                    yield sample
        gone = sum(self._is_lost(now, gpu, jobs) or index == self.lost for index, gpu in enumerate(self.gpus))
        for kind, value in (("expected", 8), ("seen", 8 - gone), ("lost", gone), ("unknown", 0)):
            yield "goodput_gpus", {"kind": kind}, value
        loading = any(job.plan.starve and now > job.plan.starve[0] for job, _ in living.values())
        yield from self._host(busy, loading, passed)
        yield from self._links(busy, now, passed, length)
        yield from placement.series(list(living.values()), loading, passed, now, self._count)
        yield from self._agent(len(here), now, passed, jobs)

    def _count(self, name: str, labels: Labels, more: float) -> Sample:
        key = (name, *labels.values())
        self.counts[key] = self.counts.get(key, 0.0) + max(0.0, more)
        return name, labels, self.counts[key]

    def _is_lost(self, now: float, gpu: str, jobs: list[Job]) -> bool:
        """The GPU that kills the first run is away until its node was reset."""
        kill = jobs[0].plan.kill
        return self.name == "gpu-02" and gpu == self.gpus[3] and kill is not None and kill <= now < kill + 60

    # -- Ranks

    def _rank(self, job: Job, rank: Rank, now: float) -> Iterator[Sample]:
        who = {"run": job.plan.run, "rank": str(rank.number)}
        alive = job.alive and not job.ended
        place = {"attempt": str(job.attempt), "host": self.name, "device": DEVICE, "gpu_uuid": rank.gpu}
        yield "goodput_rank_info", {**who, **place, "group": "", "stage": ""}, 1
        yield "goodput_rank_alive", who, float(alive)
        totals, phase = rank.at(now)
        if alive:
            age = max(0.0, now - rank.stands[0])
            yield "goodput_rank_beat_age_seconds", who, min(age, 2.0)
            yield "goodput_rank_phase_age_seconds", {**who, "phase": phase}, min(age, 2.0)
            yield "goodput_gpu_rank_info", {"gpu": rank.gpu, **who}, 1
            yield "goodput_rank_process_known", who, 1
        steps = rank.told
        yield "goodput_rank_step", who, max(0, job.step - 1)
        yield "goodput_steps_total", who, steps
        yield "goodput_samples_total", who, steps * job.plan.samples
        yield "goodput_sdk_cost_seconds_total", who, steps * 4e-5
        yield "goodput_sdk_budget_ratio", who, 0.01
        yield "goodput_sdk_phases_every", who, 1
        yield "goodput_sdk_unmeasured_steps_total", who, 0
        for phase, column in COLUMN.items():
            seconds = totals[column] / 1e9
            yield "goodput_phase_seconds_total", {**who, "phase": phase, "clock": "host"}, seconds
            # The device feels copies and loading that its queue hides a little less.
            felt = seconds * (0.8 if phase in ("loader", "h2d") else 1.0)
            yield "goodput_phase_seconds_total", {**who, "phase": phase, "clock": "device"}, felt
        yield from self._histograms(rank, who)
        yield from self._loader(rank, who, totals)

    def _histograms(self, rank: Rank, who: Labels) -> Iterator[Sample]:
        for phase, one in rank.histograms.items():
            base = "goodput_step_duration_seconds" if phase == "step" else "goodput_phase_duration_seconds"
            labels = who if phase == "step" else {**who, "phase": phase}
            below = 0
            for bound, count in zip((*map(repr, LATENCY_BOUNDS), "+Inf"), one.counts, strict=True):
                below += count
                yield f"{base}_bucket", {**labels, "le": bound}, below
            yield f"{base}_sum", labels, one.total
            yield f"{base}_count", labels, below

    def _loader(self, rank: Rank, who: Labels, totals: list[int]) -> Iterator[Sample]:
        yield "goodput_loader_batches_total", who, rank.batches
        yield "goodput_loader_starved_batches_total", who, rank.starved
        yield "goodput_loader_ready_batches_total", who, (rank.batches - rank.starved) * 3
        yield "goodput_loader_workers", who, 8
        for reason, seconds in rank.loader_waits.items():
            yield "goodput_loader_wait_seconds_total", {**who, "reason": reason}, seconds
        wall = sum(totals) / 1e9
        starving = min(1.0, 3 * rank.loader_waits["storage"] / wall) if wall else 0.0
        for worker in range(4):
            shares = {"storage": 0.25 + 0.6 * starving, "decode": 0.2, "collate": 0.03, "cpus": 0.01}
            shares["idle"] = max(0.0, 1 - sum(shares.values()))
            for part, share in shares.items():
                labels = {**who, "loader": "0", "worker": str(worker), "part": part}
                yield self._count("goodput_loader_worker_seconds_total", labels, share * 10)
            labels = {**who, "loader": "0", "worker": str(worker)}
            yield "goodput_loader_worker_batches_total", labels, rank.batches / 4
            yield "goodput_loader_worker_waited_seconds_total", labels, rank.loader_waits["storage"] / 4

    # -- GPUs

    def _gpu(self, index, gpu, job: Job | None, rank: Rank | None, gone, now, passed) -> Iterator[Sample]:
        of = {"gpu": gpu}
        yield "goodput_gpu_up", of, float(not gone)
        pci = f"0000:{16 + index:02x}:00.0"
        info = {"index": str(index), "model": DEVICE, "pci": pci, "numa": str(index // 4), "driver": "570.86"}
        yield "goodput_gpu_info", {**of, **info, "parent": "", "profile": ""}, 1
        if gone:
            return
        spent = self._spent(gpu, rank, now, passed)
        total = sum(spent.values()) or 1.0
        load = {
            unit: sum(LOADS.get(phase, IDLE)[unit] * seconds for phase, seconds in spent.items()) / total
            for unit in IDLE
        }
        slow = job.slowness(rank) > 1 if job and rank else False
        load["power"] *= self.random.uniform(0.97, 1.02) * (0.82 if slow else 1)
        yield "busy", {}, load["sm"]
        yield from self._activity(of, load, spent, passed)
        yield from self._state(of, gpu, load, slow, passed)
        yield from self._damage(of, index, now, passed)

    def _spent(self, gpu: str, rank: Rank | None, now: float, passed: float) -> dict[str, float]:
        """Seconds of the GPU's rank by phase since the last look."""
        if rank is None:
            self.phases_before.pop(gpu, None)
            return {"idle": passed}
        totals, _ = rank.at(now)
        before = self.phases_before.get(gpu, totals)
        self.phases_before[gpu] = totals
        spent = {phase: max(0, totals[c] - before[c]) / 1e9 for phase, c in COLUMN.items()}
        return {phase: seconds for phase, seconds in spent.items() if seconds} or {"none": passed}

    def _activity(self, of: Labels, load, spent, passed: float) -> Iterator[Sample]:
        units = {unit: load[unit] for unit in ("sm", "tensor", "dram")}
        units |= {"engine": min(1.0, load["sm"] * 1.03), "sm_occupancy": load["sm"] * 0.44}
        units |= {"utilization": min(1.0, load["sm"] * 1.05)}
        for unit, value in units.items():
            value = min(1.0, max(0.0, value * self.random.uniform(0.98, 1.02)))
            yield "goodput_gpu_activity_ratio", {**of, "unit": unit}, value
        for phase in (*PHASES, "idle"):
            seconds = spent.get(phase, 0.0)
            if not seconds and ("goodput_gpu_phase_seconds_total", of["gpu"], phase) not in self.counts:
                continue
            at = LOADS.get(phase, IDLE)
            labels = {**of, "phase": phase}
            yield self._count("goodput_gpu_phase_seconds_total", labels, seconds)
            watts = at["power"] * seconds * self.random.uniform(0.97, 1.03)
            yield self._count("goodput_gpu_phase_energy_joules_total", labels, watts)
            for unit in ("sm", "tensor", "dram"):
                active = at[unit] * seconds * self.random.uniform(0.98, 1.02)
                yield self._count("goodput_gpu_activity_seconds_total", {**labels, "unit": unit}, active)
        yield self._count("goodput_gpu_phase_mixed_seconds_total", of, 0.2 * passed)

    def _state(self, of: Labels, gpu: str, load, slow: bool, passed: float) -> Iterator[Sample]:
        goal = 31 + load["power"] * 0.055 + (17 if slow else 0)
        self.heat[gpu] += (goal - self.heat[gpu]) * min(1.0, passed / 60)
        heat = self.heat[gpu] + self.random.uniform(-0.4, 0.4)
        yield "goodput_gpu_temperature_celsius", {**of, "sensor": "core"}, round(heat)
        yield "goodput_gpu_temperature_celsius", {**of, "sensor": "memory"}, round(heat + 9)
        yield "goodput_gpu_power_watts", of, load["power"]
        yield "goodput_gpu_power_limit_watts", of, 700
        yield self._count("goodput_gpu_energy_joules_total", of, load["power"] * passed)
        clock = 1.98e9 if load["sm"] < 0.1 else 1.755e9 * self.random.uniform(0.985, 1.01)
        yield "goodput_gpu_clock_hertz", {**of, "clock": "sm"}, 1.38e9 if slow else clock
        yield "goodput_gpu_clock_hertz", {**of, "clock": "memory"}, 2.619e9
        used = (0.86 if load["sm"] > 0.1 else 0.01) * BYTES_OF_GPU
        for kind, value in (("total", BYTES_OF_GPU), ("used", used), ("free", BYTES_OF_GPU - used)):
            yield "goodput_gpu_memory_bytes", {**of, "kind": kind}, value
        capped = load["power"] > 600 and self.random.random() < 0.25
        reasons = {"idle": load["sm"] < 0.1, "power": capped, "thermal": slow, "hw_thermal": False}
        for reason, holds in {**reasons, "hw_slowdown": False}.items():
            yield "goodput_gpu_throttled", {**of, "reason": reason}, float(holds)
            yield self._count("goodput_gpu_throttle_seconds_total", {**of, "reason": reason}, passed * holds)
        for link, top in (("nvlink", 210e9), ("pcie", 9e9)):
            for direction in ("transmit", "receive"):
                labels = {**of, "link": link, "direction": direction}
                moved = top * load["sm"] * passed * self.random.uniform(0.9, 1.1)
                yield self._count("goodput_gpu_link_bytes_total", labels, moved)

    def _damage(self, of: Labels, index: int, now: float, passed: float) -> Iterator[Sample]:
        flaky = self.name == "gpu-03" and index == 6
        for kind in ("correctable", "uncorrectable"):
            more = flaky and kind == "correctable" and self.random.random() < 0.02
            yield self._count("goodput_gpu_ecc_errors_total", {**of, "kind": kind, "scope": "volatile"}, more)
        for kind in ("correctable", "uncorrectable", "pending", "failure"):
            yield "goodput_gpu_rows_remapped", {**of, "kind": kind}, float(flaky and kind == "correctable")
        yield self._count("goodput_gpu_pcie_replays_total", of, self.random.random() < 0.001)
        for kind in ("current", "max"):
            yield "goodput_gpu_pcie_generation", {**of, "kind": kind}, 5
            yield "goodput_gpu_pcie_lanes", {**of, "kind": kind}, 16
        for kind in ("crc_flit", "crc_data", "replay", "recovery"):
            yield self._count("goodput_gpu_nvlink_errors_total", {**of, "kind": kind}, 0)
        yield "goodput_gpu_recovery_action", {**of, "action": "none"}, 1
        yield "goodput_gpu_false_zero", of, 0
        yield "goodput_gpu_sample_age_seconds", of, self.random.uniform(0.1, 1.0)

    # -- The node

    def _links(self, busy: float, now: float, passed: float, length: float) -> Iterator[Sample]:
        crowded = self.name == "gpu-02" and length - 1500 < now < length - 1100
        for index in range(4):
            of = {"device": f"mlx5_{index}", "port": "1"}
            info = {"link_layer": "InfiniBand", "driver": "mlx5_core", "netdev": "", "pci": "", "numa": "0"}
            yield (
                "goodput_infiniband_info",
                {**of, **info, "firmware": "28.39", "board": "", "node_guid": ""},
                1,
            )
            yield "goodput_infiniband_up", of, 1
            yield "goodput_infiniband_rate_bytes_per_second", of, LINE_RATE
            for direction in ("transmit", "receive"):
                moved = 0.62 * LINE_RATE * busy * passed * self.random.uniform(0.85, 1.1)
                yield self._count("goodput_infiniband_bytes_total", {**of, "direction": direction}, moved)
            waits = passed * (4e6 if crowded else 2e5) * busy * self.random.uniform(0.7, 1.3)
            yield self._count("goodput_infiniband_xmit_wait_ticks_total", of, waits)
            labels = {**of, "kind": "np_cnp_sent"}
            yield self._count(
                "goodput_infiniband_congestion_total", labels, passed * (90 if crowded else 0.4)
            )
            yield self._count("goodput_infiniband_errors_total", {**of, "kind": "symbol_error"}, 0)
            labels = {**of, "kind": "packet_seq_err"}
            yield self._count(
                "goodput_infiniband_retransmits_total", labels, passed * (2.5 if crowded else 0)
            )
        of = {"device": "eth0"}
        yield "goodput_network_up", of, 1
        yield "goodput_network_speed_bytes_per_second", of, 12.5e9
        for direction in ("transmit", "receive"):
            moved = passed * (0.3e9 + 1.6e9 * busy * (direction == "receive")) * self.random.uniform(0.7, 1.3)
            yield self._count("goodput_network_bytes_total", {**of, "direction": direction}, moved)
            yield self._count("goodput_network_errors_total", {**of, "direction": direction}, 0)
            yield self._count("goodput_network_drops_total", {**of, "direction": direction}, 0)

    def _host(self, busy: float, loading: bool, passed: float) -> Iterator[Sample]:
        cpus, jitter = 128, self.random.uniform
        yield "goodput_host_cpus", {}, cpus
        user = (0.06 + 0.3 * busy + (0.15 if loading else 0)) * jitter(0.95, 1.05)
        shares = {
            "user": user,
            "system": 0.05 * jitter(0.9, 1.1),
            "iowait": (0.2 if loading else 0.01) * jitter(0.9, 1.1),
        }
        for mode, share in {**shares, "idle": max(0.0, 1 - sum(shares.values()))}.items():
            yield self._count("goodput_host_cpu_seconds_total", {"mode": mode}, cpus * share * passed)
        yield "goodput_host_load1_ratio", {}, user * jitter(0.9, 1.1)
        yield "goodput_host_processes_blocked", {}, 14 if loading else 0
        memory = {"total": 2 << 40, "available": 1.3 * (1 << 40), "cached": 0.5 * (1 << 40), "dirty": 2e8}
        for kind, value in {**memory, "shared": 8 << 30, "swap_total": 0, "swap_free": 0}.items():
            yield "goodput_host_memory_bytes", {"kind": kind}, value
        pressure = {("cpu", "some"): 0.02, ("memory", "some"): 0.0, ("memory", "full"): 0.0}
        pressure |= {("io", "some"): 0.42 if loading else 0.01, ("io", "full"): 0.31 if loading else 0.005}
        for (resource, kind), share in pressure.items():
            labels = {"resource": resource, "kind": kind}
            yield self._count(
                "goodput_host_pressure_seconds_total", labels, share * passed * jitter(0.8, 1.2)
            )
        for disk in ("nvme0n1", "nvme1n1"):
            for direction, rate in (("read", 2.1e9 if loading else 3e8), ("write", 6e7)):
                labels = {"device": disk, "direction": direction}
                yield self._count("goodput_host_disk_bytes_total", labels, rate * passed * jitter(0.7, 1.3))
                operations = rate / 131072 * passed
                yield self._count("goodput_host_disk_operations_total", labels, operations)
                latency = (9e-3 if loading else 2e-4) * operations
                yield self._count("goodput_host_disk_operation_seconds_total", labels, latency)
            yield "goodput_host_disk_in_flight", {"device": disk}, 60 if loading else 2
            share = (0.94 if loading else 0.12) * jitter(0.9, 1.05)
            yield self._count("goodput_host_disk_busy_seconds_total", {"device": disk}, share * passed)
        yield self._count("goodput_host_tcp_retransmits_total", {}, passed * 0.3 * jitter(0, 2))
        for kind in ("oom_kills", "major_faults"):
            yield self._count(f"goodput_host_{kind}_total", {}, 0)
        for mount, size, free in (("/", 9e11, 0.62), ("/data", 4e14, 0.18)):
            of = {"mount": mount}
            fstype = "ext4" if mount == "/" else "lustre"
            yield "goodput_filesystem_info", {**of, "fstype": fstype, "source": "/dev/nvme0n1"}, 1
            yield "goodput_filesystem_up", of, 1
            yield "goodput_filesystem_response_seconds", of, (0.08 if loading and mount == "/data" else 4e-4)
            yield "goodput_filesystem_size_bytes", of, size
            yield "goodput_filesystem_available_bytes", of, size * free

    def _agent(self, ranks: int, now: float, passed: float, jobs: list[Job]) -> Iterator[Sample]:
        yield "goodput_node_info", {"host": self.name, "version": "0.1.0"}, 1
        for state, value in (("live", ranks), ("dead", 0), ("rejected", 0)):
            yield "goodput_node_pages", {"state": state}, value
        for collector, cost in {"ranks": 0.002, "gpus": 0.001, "host": 0.003, "infiniband": 0.004}.items():
            yield "goodput_node_collector_up", {"collector": collector}, 1
            yield (
                "goodput_node_collector_seconds",
                {"collector": collector},
                cost * self.random.uniform(0.8, 1.4),
            )
            yield self._count("goodput_node_collector_errors_total", {"collector": collector}, 0)
        for outcome in ("accepted", "rejected", "unreachable"):
            yield self._count(
                "goodput_node_pushes_total", {"outcome": outcome}, passed / 2 * (outcome == "accepted")
            )
        yield "goodput_node_backlog_rows", {}, 0
        yield self._count("goodput_node_rows_thinned_total", {}, 0)
        yield "goodput_node_scrape_seconds", {}, 0.006 * self.random.uniform(0.8, 1.5)
        yield self._count(
            "goodput_node_cpu_seconds_total", {}, passed * 0.006 * self.random.uniform(0.8, 1.2)
        )
        yield "goodput_node_memory_bytes", {}, 41e6 + 2e5 * math.sin(now / 500)
        yield "goodput_driver_up", {"driver": "nvml"}, 1
        yield "goodput_driver_sample_age_seconds", {"driver": "nvml"}, self.random.uniform(0.1, 1.0)
        yield self._count("goodput_driver_samples_total", {"driver": "nvml"}, passed)
        yield self._count("goodput_driver_cpu_seconds_total", {"driver": "nvml"}, passed * 0.003)
        yield "goodput_driver_memory_bytes", {"driver": "nvml"}, 29e6
        yield from self._health(now, jobs)

    def _health(self, now: float, jobs: list[Job]) -> Iterator[Sample]:
        """What happened to the node's hardware so far."""
        kill, slow = jobs[0].plan.kill, jobs[0].plan.slow
        if self.name == "gpu-02" and now >= kill:
            for kind in ("xid", "lost", *(["back"] if now >= kill + 60 else [])):
                severity = "info" if kind == "back" else "critical"
                labels = {"kind": kind, "severity": severity, "device": self.gpus[3]}
                yield "goodput_health_events_total", labels, 1
            yield "goodput_gpu_xid_errors_total", {"gpu": self.gpus[3], "xid": "79", "class": "bus"}, 1
        if self.name == "gpu-02" and slow and now >= slow[1]:
            labels = {"kind": "throttle", "severity": "warning", "device": self.gpus[slow[0] % GPUS_PER_NODE]}
            yield "goodput_health_events_total", labels, 1
        if self.lost is not None:
            labels = {"kind": "lost", "severity": "critical", "device": self.gpus[self.lost]}
            yield "goodput_health_events_total", labels, 1
