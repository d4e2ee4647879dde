"""A node's GPUs and their driver."""

from __future__ import annotations

import numpy as np

from goodput.simulate.run import PHASES
from goodput.simulate.scenario import DEVICE, gpu_uuid

GPUS_PER_NUMA_NODE = 4
MEMORY_BYTES = 80 << 30
ACTIVITY = {"utilization": 0.97, "engine": 0.95, "sm": 0.8, "tensor": 0.45, "dram": 0.5}
IDLE_WATTS, BUSY_WATTS, LIMIT_WATTS = 110, 680, 700
# While its rank is in a phase: watts, and shares of the time in which the units are active.
LOADS = {
    "forward": {"watts": 640, "sm": 0.93, "tensor": 0.58, "dram": 0.42},
    "backward": {"watts": 665, "sm": 0.95, "tensor": 0.61, "dram": 0.48},
    "optimizer": {"watts": 430, "sm": 0.88, "tensor": 0.04, "dram": 0.81},
    "communication": {"watts": 290, "sm": 0.55, "tensor": 0.0, "dram": 0.2},
    "evaluation": {"watts": 520, "sm": 0.85, "tensor": 0.45, "dram": 0.4},
}
IDLE_LOAD = {"watts": 118, "sm": 0.02, "tensor": 0.0, "dram": 0.01}


def add(node) -> None:
    for index in range(len(node.busy)):
        gpu = gpu_uuid(node.name, index)
        busy = node.busy[index]
        _identity(node, gpu, index)
        _activity(node, gpu, busy)
        _clocks(node, gpu, busy)
        _errors(node, gpu, index, busy)
        _limits(node, gpu, busy)
        _links(node, gpu, busy)
        if node.phases is not None:
            _by_phase(node, gpu, node.phases[index])
    _switches(node)
    _driver(node)


def _identity(node, gpu: str, index: int) -> None:
    numa, pci = str(index // GPUS_PER_NUMA_NODE), f"0000:{0x1B + 0x11 * index:02x}:00.0"
    info = {"index": str(index), "model": DEVICE, "pci": pci, "numa": numa, "driver": "nvml"}
    node.gauge("goodput_gpu_info", 1, gpu=gpu, **info, parent="", profile="")
    node.gauge("goodput_numa_device_node", int(numa), device=pci, kind="gpu")
    node.gauge("goodput_gpu_up", 1, gpu=gpu)


def _activity(node, gpu: str, busy: np.ndarray) -> None:
    for unit, share in ACTIVITY.items():
        active = np.clip(busy * share + node.noise(0.01) * (busy > 0), 0, 1)
        node.gauge("goodput_gpu_activity_ratio", active, gpu=gpu, unit=unit)
    node.gauge("goodput_gpu_false_zero", 0, gpu=gpu)
    node.gauge("goodput_gpu_sample_age_seconds", 0.5, gpu=gpu)
    used = np.where(busy > 0, 0.86, 0.01) * MEMORY_BYTES
    for kind, value in {"total": MEMORY_BYTES, "used": used, "free": MEMORY_BYTES - used}.items():
        node.gauge("goodput_gpu_memory_bytes", value, gpu=gpu, kind=kind)
    for link, bytes_per_second in {"nvlink": 170e9, "pcie": 7e9}.items():
        for direction in ("transmit", "receive"):
            labels = {"gpu": gpu, "link": link, "direction": direction}
            node.counter("goodput_gpu_link_bytes_total", bytes_per_second * busy, **labels)


def _clocks(node, gpu: str, busy: np.ndarray) -> None:
    """What holds clocks down, temperature and power."""
    moments = len(node.times)
    capped = node.random.random(moments) < 0.35 * busy
    # A dip of a second: a scrape that is one of two in a window must not make minutes of it.
    hot = (node.random.random(moments) < 0.003 * busy * (1 + node.day)) & (node.steps <= 15)
    for reason, held in {"power": capped, "thermal": hot, "idle": busy < 0.05}.items():
        node.gauge("goodput_gpu_throttled", held, gpu=gpu, reason=reason)
    for reason in ("hw_thermal", "hw_slowdown", "hw_power_brake"):
        node.gauge("goodput_gpu_throttled", 0, gpu=gpu, reason=reason)
    for reason, share in {"power": 0.35, "thermal": 0.005, "board_limit": 0, "reliability": 0}.items():
        node.counter("goodput_gpu_throttle_seconds_total", share * busy, gpu=gpu, reason=reason)
    for sensor, cold in {"core": 34, "memory": 42}.items():
        degrees = cold + 32 * busy + 4 * node.day + node.noise(0.5)
        node.gauge("goodput_gpu_temperature_celsius", degrees, gpu=gpu, sensor=sensor)
    watts = IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * busy
    node.gauge("goodput_gpu_power_watts", watts + node.noise(8), gpu=gpu)
    node.gauge("goodput_gpu_power_limit_watts", LIMIT_WATTS, gpu=gpu)
    node.counter("goodput_gpu_energy_joules_total", watts, gpu=gpu)
    node.gauge("goodput_gpu_clock_hertz", (1.98 - 0.1 * capped) * 1e9, gpu=gpu, clock="sm")


def _errors(node, gpu: str, index: int, busy: np.ndarray) -> None:
    node.gauge("goodput_gpu_recovery_action", 1, gpu=gpu, action="none")
    for kind in ("pending", "failure"):
        node.gauge("goodput_gpu_rows_remapped", 0, gpu=gpu, kind=kind)
    node.gauge("goodput_gpu_rows_remapped", index % 3 == 0, gpu=gpu, kind="correctable")
    for kind in ("current", "max"):
        node.gauge("goodput_gpu_pcie_lanes", 16, gpu=gpu, kind=kind)
    # An idle link sleeps.
    node.gauge("goodput_gpu_pcie_generation", np.where(busy > 0.05, 5, 1), gpu=gpu, kind="current")
    node.gauge("goodput_gpu_pcie_generation", 5, gpu=gpu, kind="max")
    node.rare_events("goodput_gpu_pcie_replays_total", 0.2, 2, gpu=gpu)
    for scope in ("volatile", "aggregate"):
        name, labels = "goodput_gpu_ecc_errors_total", {"gpu": gpu, "scope": scope}
        node.rare_events(name, 0.3, 3, **labels, kind="correctable")
        node.counter(name, 0, **labels, kind="uncorrectable")
    node.rare_events("goodput_gpu_nvlink_errors_total", 0.1, 2, gpu=gpu, kind="replay")
    node.gauge("goodput_gpu_nvlink_bit_error_ratio", 1e-15, gpu=gpu, kind="effective")


def _limits(node, gpu: str, busy: np.ndarray) -> None:
    """How far from its limits, and what is left to repair its memory."""
    node.gauge("goodput_gpu_temperature_margin_celsius", 55 - 32 * busy - 4 * node.day, gpu=gpu)
    for limit, degrees in {"slowdown": 89, "shutdown": 92}.items():
        node.gauge("goodput_gpu_temperature_limit_celsius", degrees, gpu=gpu, limit=limit)
    for kind, watts in {
        "requested": LIMIT_WATTS,
        "default": LIMIT_WATTS,
        "min": 200,
        "max": LIMIT_WATTS,
    }.items():
        node.gauge("goodput_gpu_power_setting_watts", watts, gpu=gpu, kind=kind)
    node.gauge("goodput_gpu_clock_limit_hertz", 1.98e9, gpu=gpu, clock="sm", kind="max")
    node.gauge("goodput_gpu_performance_state", 0, gpu=gpu)
    for kind, value in {"total": 128 << 30, "used": 2 << 20}.items():
        node.gauge("goodput_gpu_bar1_bytes", value, gpu=gpu, kind=kind)
    place = {"gpu": gpu, "kind": "correctable", "scope": "volatile", "location": "device"}
    node.rare_events("goodput_gpu_ecc_location_errors_total", 0.3, 3, **place)
    node.gauge("goodput_gpu_ecc_threshold_exceeded", 0, gpu=gpu)
    node.gauge("goodput_gpu_ecc_enabled", 1, gpu=gpu, kind="current")
    for spare in ("low", "none"):
        node.gauge("goodput_gpu_row_remap_banks", 0, gpu=gpu, spare=spare)


def _links(node, gpu: str, busy: np.ndarray) -> None:
    for link in ("0", "17"):
        node.gauge("goodput_gpu_nvlink_up", 1, gpu=gpu, link=link)
        node.rare_events("goodput_gpu_nvlink_link_errors_total", 0.1, 2, gpu=gpu, link=link, kind="replay")
        node.counter(
            "goodput_gpu_nvlink_link_bytes_total", 9.4e9 * busy, gpu=gpu, link=link, direction="transmit"
        )
    node.rare_events("goodput_gpu_pcie_errors_total", 0.2, 2, gpu=gpu, kind="correctable")
    node.gauge("goodput_gpu_fabric_state", 1, gpu=gpu, state="completed")
    node.gauge("goodput_gpu_fabric_problem", 0, gpu=gpu, problem="degraded_bandwidth")


def _switches(node) -> None:
    switch = {"nvswitch": "nvswitch0"}
    node.gauge("goodput_nvswitch_temperature_celsius", 44 + 2 * node.day, **switch)
    node.gauge("goodput_nvswitch_temperature_limit_celsius", 95, **switch, limit="slowdown")
    node.gauge("goodput_nvswitch_link_up", 1, **switch, link="0")
    node.gauge("goodput_nvswitch_last_sxid", 0, **switch, **{"class": "fatal"})


def _by_phase(node, gpu: str, seconds_by_phase: np.ndarray) -> None:
    for phase, seconds in zip(PHASES, seconds_by_phase, strict=True):
        # Seconds spent since the moment before, over its length: a rate that the counter sums up again.
        share = np.divide(seconds, node.steps, out=np.zeros(len(node.steps)), where=node.steps > 0)
        load = LOADS.get(phase, IDLE_LOAD)
        labels = {"gpu": gpu, "phase": phase}
        node.counter("goodput_gpu_phase_seconds_total", share, **labels)
        node.counter("goodput_gpu_phase_energy_joules_total", share * load["watts"], **labels)
        for unit in ("sm", "tensor", "dram"):
            node.counter("goodput_gpu_activity_seconds_total", share * load[unit], **labels, unit=unit)
    node.counter("goodput_gpu_phase_mixed_seconds_total", 0.2, gpu=gpu)


def _driver(node) -> None:
    gpus = len(node.busy)
    node.gauge("goodput_driver_up", 1, driver="nvml")
    node.gauge("goodput_driver_processes_unkillable", 0, driver="nvml")
    node.gauge("goodput_driver_memory_bytes", 20e6, driver="nvml")
    node.counter("goodput_driver_cpu_seconds_total", 0.003, driver="nvml")
    node.counter("goodput_driver_samples_total", 1, driver="nvml")
    node.gauge("goodput_driver_sample_age_seconds", 0.5, driver="nvml")
    for reason in ("stuck", "died", "memory"):
        node.counter("goodput_driver_restarts_total", 0, driver="nvml", reason=reason)
    for kind, count in {"expected": gpus, "seen": gpus, "lost": 0, "unknown": 0}.items():
        node.gauge("goodput_gpus", count, kind=kind)
