"""A driver of two sound GPUs, but that GPU-0 has a bad row, half its lanes and an XID: for the node board's test.

It is loaded in the agent's child process as `--module hardware_driver:Two`. Every family of readings has one.
"""

from __future__ import annotations

import time

from goodput_exporters.gpu.sample import Component, Event, Gpu, Sample

UNITS = ("utilization", "engine", "sm", "sm_occupancy", "tensor", "dram")


def readings(index: int, seconds: float) -> dict[str, float]:
    found = {f"activity/{unit}": 0.5 for unit in UNITS}
    found |= {"power": 400.0, "energy": 400.0 * seconds, "power_limit": 700.0}
    for link in ("pcie", "nvlink"):
        found |= {f"link_bytes/{link}/{way}": 1e9 * seconds for way in ("transmit", "receive")}
    found |= {
        f"throttled/{reason}": 0.0 for reason in ("idle", "power", "thermal", "hw_thermal", "hw_slowdown")
    }
    found |= {f"ecc/{kind}/aggregate": 3.0 for kind in ("correctable", "uncorrectable")}
    found |= {"rows_remapped/pending": 0.0, "rows_remapped/failure": float(index == 0)}
    found |= {"clock/sm": 1.98e9, "temperature/core": 50.0, "temperature/memory": 60.0, "pcie_replays": 0.0}
    found |= {f"memory/{kind}": 8e10 for kind in ("total", "used", "free")}
    found |= {
        "pcie_lanes/current": 8.0 if index == 0 else 16.0,
        "pcie_lanes/max": 16.0,
        "nvlink_errors/replay": 0.0,
        "nvlink_bit_errors/effective": 1e-15,
        "xgmi_links/down": 0.0,
    }
    found |= {"pcie_generation/current": 5.0, "pcie_generation/max": 5.0, "recovery/none": 1.0}
    return found | details(seconds)


def details(seconds: float) -> dict[str, float]:
    """Limits, errors by place, and each link."""
    found = {
        "temperature_margin": 26.0,
        "temperature_limit/slowdown": 89.0,
        "temperature_limit_margin/slowdown": -2.0,
    }
    found |= {"fan": 0.4, "power_setting/requested": 700.0, "power_instant": 410.0, "performance_state": 0.0}
    found |= {"clock_limit/sm/max": 1.98e9, "bar1/total": 2.0**37, "bar1/used": 2.0**21, "ecc_threshold": 0.0}
    found |= {
        "ecc_location/correctable/volatile/device": seconds,
        "ecc_mode/current": 1.0,
        "remap_banks/none": 0.0,
    }
    found |= {
        "nvlink_up/0": 1.0,
        "nvlink_link_errors/0/replay": seconds,
        "nvlink_link_bytes/0/transmit": 1e9 * seconds,
    }
    found |= {
        "pcie_errors/correctable": 0.0,
        "c2c_links/present": 1.0,
        "c2c_links/active": 1.0,
        "c2c_errors/crc": 0.0,
    }
    found |= {"fabric/completed": 1.0, "fabric_problem/route_unhealthy": 1.0}
    found |= {"nvlink_link_rate/1/transmit": 1e9, "dcgm_field/DCGM_FI_DEV_GPU_NVLINK_ERRORS": 0.0}
    return found | {"vgpu_license/supported": 1.0, "vgpu_license/licensed": 0.0}


def components() -> list[Component]:
    switch = {"temperature": 44.0, "temperature_limit/slowdown": 95.0, "power/vdd": 20.0, "sxid/fatal": 0.0}
    switch |= {"reset_required": 0.0, "link_up/3": 0.0, "link_errors/3/crc": 1.0}
    grace = {"temperature": 51.0, "temperature_limit/warning": 95.0, "power/cpu": 80.0, "power_limit": 250.0}
    return [
        Component("nvswitch", "nvswitch0", switch),
        Component("cpu", "0", grace | {"activity/total": 0.3}),
    ]


class Two:
    name = "two"

    def __init__(self, options):
        self.began = time.monotonic()
        self.events = [Event("xid", "GPU-0", time.time_ns(), code=79, severity="critical")]

    def open(self) -> None:
        pass

    def sample(self, full: bool) -> Sample:
        seconds = time.monotonic() - self.began
        gpus = [
            Gpu(f"GPU-{at}", index=at, pci=f"0000:0{at}:00.0", model="H100", readings=readings(at, seconds))
            for at in range(2)
        ]
        events, self.events = self.events, []
        return Sample(self.name, time.monotonic_ns(), gpus, full=full, events=events, components=components())

    def close(self) -> None:
        pass
