"""NVIDIA GPUs under dcgm-exporter's names and labels, so that its boards and alerts go on working without it.

Names, types and units are those of its etc/default-counters.csv and etc/dcp-metrics-included.csv, those that are commented
out there included, or of a list in its format (counters_file.py); values are converted back from ours by the table of
DCGM's fields. A field that no driver has a value of is left out.

    families(gpus, {"GPU-5d…": 79}, "node-1")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from goodput.metrics.foreign import ForeignFamily, ForeignSample
from goodput_exporters.gpu.drivers import XID_DRIVERS
from goodput_exporters.gpu.merge import MergedGpu
from goodput_exporters.gpu.nvidia.counters_file import Counter
from goodput_exporters.gpu.nvidia.dcgm_field_table import (
    EVENT_REASONS,
    FABRIC_STATUS,
    RECOVERY_ACTION,
    XID,
    Field,
)
from goodput_exporters.gpu.nvidia.dcgm_fields import FIELDS, field_of_name
from goodput_exporters.gpu.nvidia.status_codes import FABRIC_STATES, RECOVERY_ACTIONS, THROTTLE_REASONS
from goodput_exporters.gpu.nvidia.xid import lookup

# Fields by ID, in the order of the exporter's lists, and what each counts. The others are gauges.
COUNTERS = {
    156: "Energy used since the driver was loaded (in mJ).",
    202: "PCIe packets retransmitted.",
    240: "Time throttled by the power limit (in ns).",
    241: "Time throttled by heat (in ns).",
    242: "Time throttled by sync boost (in ns).",
    243: "Time throttled by the board's limit (in ns).",
    244: "Time throttled by low utilisation (in ns).",
    245: "Time throttled for reliability (in ns).",
    310: "Single-bit ECC errors since the driver was loaded.",
    311: "Double-bit ECC errors since the driver was loaded.",
    312: "Single-bit ECC errors over the GPU's life.",
    313: "Double-bit ECC errors over the GPU's life.",
    390: "Pages retired after single-bit errors.",
    391: "Pages retired after double-bit errors.",
    392: "Pages that wait for retirement.",
    409: "NVLink flow-control CRC errors.",
    419: "NVLink data CRC errors.",
    429: "NVLink retries.",
    439: "NVLink recovery errors.",
    393: "Rows remapped after uncorrectable errors.",
    394: "Rows remapped after correctable errors.",
}
GAUGES = {
    100: "SM clock (in MHz).",
    101: "Memory clock (in MHz).",
    140: "Memory temperature (in C).",
    150: "GPU temperature (in C).",
    155: "Power drawn (in W).",
    200: "Bytes sent over PCIe per second (in KB).",
    201: "Bytes received over PCIe per second (in KB).",
    203: "GPU utilisation (in %).",
    204: "Memory utilisation (in %).",
    206: "Encoder utilisation (in %).",
    207: "Decoder utilisation (in %).",
    250: "Memory in all (in MiB).",
    251: "Memory that is free (in MiB).",
    252: "Memory that is used (in MiB).",
    253: "Memory that the driver reserves (in MiB).",
    395: "Whether remapping of rows has failed.",
    449: "NVLink bandwidth of all links.",
    526: "Whether a vGPU is licensed.",
    1001: "Share of time in which the graphics engine was active.",
    1002: "Share of cycles in which an SM had a warp.",
    1003: "Share of warps resident on an SM.",
    1004: "Share of cycles in which the tensor pipe was active.",
    1005: "Share of cycles in which the memory interface was active.",
    1006: "Share of cycles in which the fp64 pipe was active.",
    1007: "Share of cycles in which the fp32 pipe was active.",
    1008: "Share of cycles in which the fp16 pipe was active.",
    1009: "Bytes sent over PCIe per second.",
    1010: "Bytes received over PCIe per second.",
}
_XID_HELP = "The last XID error, 0 for none."
_NVLINK_RATE, _VGPU_LICENSE = 449, 526
_TYPES = ("gauge", "counter")


def _usual() -> tuple[Counter, ...]:
    kinds = ((COUNTERS, "counter"), (GAUGES, "gauge"))
    found = [
        Counter(FIELDS[number].names[0], kind, text)
        for texts, kind in kinds
        for number, text in texts.items()
    ]
    return (*found, Counter(FIELDS[XID].names[0], "gauge", _XID_HELP))


USUAL = _usual()


def families(
    gpus: Iterable[MergedGpu], last_xids: Mapping[str, int], host: str, counters: tuple[Counter, ...] = ()
) -> list[ForeignFamily]:
    """The series of those GPUs that are NVIDIA's; `last_xids` is by UUID. Without `counters` the usual."""
    found = [gpu for gpu in gpus if not gpu.lost and not set(XID_DRIVERS).isdisjoint(gpu.known_by)]
    # An instance has the labels of its GPU and its own. Two drivers, or two compute instances, may have the same one.
    whole = {gpu.uuid: gpu for gpu in found if not gpu.parent}
    labels = [(gpu, _labels(whole.get(gpu.parent, gpu), gpu, host)) for gpu in found]
    all_families = []
    for counter in counters or USUAL:
        if counter.kind in _TYPES:
            family = ForeignFamily(counter.name, counter.kind, counter.help)
            field = field_of_name(counter.name)
            seen = set()
            for gpu, one in labels:
                value = _value(counter.name, field, gpu, last_xids)
                device = gpu.parent or gpu.uuid, gpu.instance
                if value is not None and math.isfinite(value) and device not in seen:
                    seen.add(device)
                    more = _of_xid(int(value)) if field is not None and field.number == XID else ()
                    family.samples.append(ForeignSample(counter.name, tuple(sorted((*one, *more))), value))
            if family.samples:
                all_families.append(family)
    return all_families


def names_of(counters: tuple[Counter, ...] = ()) -> list[str]:
    """The names that `families` serves where they have a value."""
    return [one.name for one in counters or USUAL if one.kind in _TYPES]


def _value(name: str, field: Field | None, gpu: MergedGpu, last_xids: Mapping[str, int]) -> float | None:
    """The value in DCGM's unit, with as many digits as the exporter writes of it."""
    if field is None:
        return gpu.readings.get(f"dcgm_field/{name}")
    if gpu.parent and not field.instance:
        return None
    if field.number == XID:
        return float(last_xids.get(gpu.uuid, 0))
    raw = _number(field, gpu.readings)
    return None if raw is None else round(raw, 6 if field.double else 0)


def _number(field: Field, readings: Mapping[str, float]) -> float | None:
    """The field's raw value."""
    if not field.key:
        return _coded(field.number, readings)
    value = readings.get(field.key)
    if value is None and field.number == _NVLINK_RATE:
        ways = [readings.get(f"link_rate/nvlink/{way}") for way in ("transmit", "receive")]
        value = None if None in ways else sum(way or 0.0 for way in ways)
    if value is None and field.number == _VGPU_LICENSE and readings.get("vgpu_license/supported") == 0:
        return 0.0  # The exporter has a GPU that needs none as not licensed.
    multiply, divide = field.scale
    return None if value is None else value * divide / multiply


def _coded(number: int, readings: Mapping[str, float]) -> float | None:
    """A field whose number stands for several readings, or for the one of several that there is."""
    if number == EVENT_REASONS:
        bits = [bit for bit, reason in THROTTLE_REASONS.items() if readings.get(f"throttled/{reason}")]
        return float(sum(bits)) if "throttled/power" in readings else None
    families = {FABRIC_STATUS: ("fabric", FABRIC_STATES), RECOVERY_ACTION: ("recovery", RECOVERY_ACTIONS)}
    family, names = families.get(number, ("", ()))
    return next((float(at) for at, name in enumerate(names) if f"{family}/{name}" in readings), None)


def _labels(whole: MergedGpu, gpu: MergedGpu, host: str) -> tuple[tuple[str, str], ...]:
    labels = {
        "gpu": str(whole.index),
        "UUID": whole.uuid if not gpu.parent else gpu.parent,
        "pci_bus_id": _bus_id(whole.pci),
        "device": f"nvidia{whole.index}",
        "modelName": whole.model,
    }
    if gpu.parent:
        labels |= {"GPU_I_PROFILE": gpu.profile, "GPU_I_ID": gpu.instance}
    labels |= {"Hostname": host, "DCGM_FI_DRIVER_VERSION": whole.driver_version}
    if len(gpu.pods) == 1:
        pod, namespace, container = gpu.pods[0]
        labels |= {"container": container, "namespace": namespace, "pod": pod}
    return tuple(sorted((name, value) for name, value in labels.items() if value))


def _of_xid(number: int) -> tuple[tuple[str, str], ...]:
    """The labels that the exporter has of an XID since 3.3.6; the text is ours."""
    return ("err_code", str(number)), ("err_msg", lookup(number).name if number else "no error")


def _bus_id(pci: str) -> str:
    """As NVML writes it: eight digits of domain, in upper case."""
    domain, _, rest = pci.partition(":")
    return f"{domain:0>8}:{rest}".upper() if rest else ""
