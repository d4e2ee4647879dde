"""What a GPU driver has no reading of, and why, for `goodput node --check`.

A subject is available where a GPU has a reading of it. What is never a reading, such as XIDs, is declared by driver.

    gaps("nvml", "", gpus)  ->  [Gap("activity by unit", "needs GPM, ...")]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from goodput_exporters.gpu.sample import Gpu

# (subject, keys of its readings, or their beginnings up to a / or _)
SUBJECTS = (
    ("utilization", ("activity/utilization",)),
    ("activity by unit", ("activity/sm", "activity/tensor", "activity/engine")),
    ("tensor cores by number format", ("activity/tensor_",)),
    ("video engines", ("activity/encoder", "activity/decoder")),
    ("performance state", ("performance_state",)),
    ("memory", ("memory/",)),
    ("BAR1", ("bar1/",)),
    ("power", ("power",)),
    ("energy", ("energy",)),
    ("temperature", ("temperature/",)),
    ("limits of power and heat", ("power_setting/", "temperature_limit/", "temperature_limit_margin/")),
    ("fan", ("fan",)),
    ("clocks", ("clock/",)),
    ("limits of clocks", ("clock_limit/",)),
    ("throttling", ("throttled/", "throttle/power")),
    ("time throttled by cause", ("throttle/sw_thermal", "throttle/hw_thermal", "throttle/hw_power_brake")),
    ("memory errors", ("ecc/",)),
    ("memory errors by place", ("ecc_location/",)),
    ("threshold of memory errors", ("ecc_threshold",)),
    ("retired memory pages", ("pages_retired/",)),
    ("remapped memory rows", ("rows_remapped/",)),
    ("spare memory rows", ("remap_banks/",)),
    ("PCIe link", ("pcie_generation/", "pcie_lanes/")),
    ("PCIe traffic", ("link_bytes/pcie/", "link_rate/pcie/")),
    ("PCIe replays", ("pcie_replays",)),
    ("PCIe errors by kind", ("pcie_errors/",)),
    ("traffic between GPUs", ("link_bytes/nvlink/", "link_rate/nvlink/", "link_bytes/xgmi/")),
    ("state of links between GPUs", ("nvlink_up/", "xgmi_links/")),
    ("errors of links between GPUs", ("nvlink_errors/", "nvlink_link_errors/", "ecc_location/correctable/volatile/xgmi_wafl")),
    ("links to the CPU (C2C)", ("c2c_links/", "c2c_errors/", "link_rate/c2c/")),
    ("NVLink fabric", ("fabric/",)),
    ("vGPU licence", ("vgpu_license/",)),
    ("recovery action", ("recovery/",)),
    ("processes", ("processes",)),
)  # fmt: skip
# What only NVIDIA's GPUs have.
_OF_NVIDIA = (
    *("tensor cores by number format", "performance state", "BAR1", "time throttled by cause"),
    *(
        "threshold of memory errors",
        "links to the CPU (C2C)",
        "NVLink fabric",
        "vGPU licence",
        "recovery action",
    ),
)
# Why a driver has no reading of a subject, "" for any other; None where GPUs of its kind have no such thing.
_REMAPS = "GPUs since Ampere remap rows of memory instead"
_RETIRES = "GPUs before Ampere retire pages of memory instead"
_NOT_SUPPORTED = "this GPU or its driver does not have it"
WHY: dict[str, dict[str, str | None]] = {
    "nvml": {
        "": _NOT_SUPPORTED,
        "activity by unit": "needs GPM (Hopper and later) or, on older GPUs, DCGM",
        "PCIe traffic": "needs GPM (Hopper and later) or, on older GPUs, DCGM",
        "tensor cores by number format": "needs GPM (Hopper and later) or, on older GPUs, DCGM",
        "time throttled by cause": "NVML's numbers of it are known for drivers 575.51 to 580.65 and from 580.82 on",
        "memory errors": "the GPU has no ECC, or it is off",
        "memory errors by place": "the GPU has no ECC, or it is off",
        "threshold of memory errors": "the GPU has no ECC, or it is off",
        "retired memory pages": _REMAPS,
        "remapped memory rows": _RETIRES,
        "spare memory rows": _RETIRES,
    },
    "dcgm": {
        "": "DCGM has no value of it for this GPU",
        "activity by unit": "the GPU has no profiling counters, or another tool holds them",
        "PCIe traffic": "the GPU has no profiling counters, or another tool holds them",
        "tensor cores by number format": "not every GPU counts them beside the other profiling counters",
        "retired memory pages": _REMAPS,
        "remapped memory rows": _RETIRES,
        "spare memory rows": _RETIRES,
        "state of links between GPUs": "DCGM is not asked; NVML has it",
        "processes": "DCGM is not asked; NVML has them",
    },
    "dcgm_endpoint": {
        "": "not among the counters that this dcgm-exporter is configured with, or the GPU does not have it",
        "processes": "a dcgm-exporter names pods and no processes",
    },
    "amd": {
        "": "this GPU or the kernel's driver does not have it",
        "activity by unit": "AMD's driver counts only whether the GPU and its memory controller are busy",
        "PCIe traffic": "amdgpu's file for it blocks for a second, and the unit in gpu_metrics differs by release",
        "remapped memory rows": "AMD's GPUs retire pages instead",
        "spare memory rows": "AMD's GPUs retire pages instead",
        "fan": "accelerators have none of their own",
        "video engines": "not read of AMD's GPUs",
        "PCIe errors by kind": "needs amdsmi, or gpu_metrics 1.6, 1.7 or 1.8 in sysfs",
        **dict.fromkeys(_OF_NVIDIA),
        "energy": "needs amdsmi, or gpu_metrics 1.3, 1.6, 1.7 or 1.8 in sysfs",
        "throttling": "needs amdsmi, or gpu_metrics 1.3, 1.6, 1.7 or 1.8 in sysfs",
        "traffic between GPUs": "no XGMI links, or it needs amdsmi or gpu_metrics 1.6, 1.7 or 1.8 in sysfs",
        "state of links between GPUs": "no XGMI links, or it needs amdsmi (ROCm 6.4) or gpu_metrics 1.7 or 1.8",
        "memory errors": "RAS is off, or the GPU has none",
        "memory errors by place": "RAS is off, or the GPU has none",
        "errors of links between GPUs": "no XGMI links, or RAS is off for them",
        "retired memory pages": "RAS is off, the list is only for root, or the GPU has none",
        "processes": "the kernel has no KFD for this GPU, or it is not in this container's sysfs",
    },
}  # fmt: skip
# What is no reading. Of AMD by the beginning of the sample's source.
ALWAYS = {
    "nvml": (("NVSwitches, Grace processors", "NVML has none of them; DCGM or a dcgm-exporter has"),),
    "dcgm": (),
    "dcgm_endpoint": (
        ("each XID", "a dcgm-exporter shows only a GPU's last one: of two within its interval one is missed"),
        ("values as of now", "they are as old as the exporter's own interval, 30 s by default"),
    ),
    "amd amdsmi": (("XIDs", "they are NVIDIA's; resets, hangs and memory faults are reported instead"),),
    "amd sysfs": (("resets, hangs and memory faults", "need amdsmi; XIDs are NVIDIA's"),),
}


class Gap(NamedTuple):
    subject: str
    why: str


def gaps(driver: str, source: str, gpus: Iterable[Gpu]) -> list[Gap]:
    """`source` is Sample.source. Nothing for a driver that is not in WHY, and where it reaches no GPU."""
    reached = [gpu for gpu in gpus if not gpu.lost]
    if driver not in WHY or not reached:
        return []
    keys = {key for gpu in reached for key in gpu.readings}
    why = WHY[driver]
    found = [
        Gap(subject, reason)
        for subject, begins in SUBJECTS
        if (reason := why.get(subject, why[""])) and not any(_matches(key, begins) for key in keys)
    ]
    always = ALWAYS.get(driver, ALWAYS.get(f"{driver} {source.partition(' ')[0]}", ()))
    return found + [Gap(*gap) for gap in always]


def _matches(key: str, begins: tuple[str, ...]) -> bool:
    return key in begins or key.startswith(tuple(one for one in begins if one[-1] in "/_"))
