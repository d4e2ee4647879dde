"""The records that GPU drivers send to the agent, the same for every driver.

A *reading* is one number under a key `family/label/...`, such as `activity/sm` or `link_bytes/nvlink/transmit`;
FAMILIES maps it to a series and labels, in the units of the series. A value that a driver does not know is left out:
missing is never 0.

    gpu = Gpu(uuid="GPU-5d…", index=0, model="NVIDIA H100 80GB HBM3", readings={"activity/sm": 0.42})
    body = encode(Sample(driver="nvml", monotonic_ns=…, gpus=[gpu])); sample = decode(body)
"""

from __future__ import annotations

import functools
import math
import sys
from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec import Struct, structs

# First part of the key -> (series, labels held by the other parts, in order).
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    # Share of the time since the last sample. Units: utilization (a kernel ran; the driver's own coarse measure),
    # engine (compute or graphics engine active), sm, sm_occupancy, tensor, dram, fp64, fp32, fp16, memory_controller;
    # integer and tensor_hmma, tensor_imma, tensor_dfma (16-bit floats, integers, fp64); encoder, decoder, jpeg, ofa; AMD: video, which does both.
    "activity": ("goodput_gpu_activity_ratio", ("unit",)),
    "link_bytes": ("goodput_gpu_link_bytes_total", ("link", "direction")),
    "link_rate": ("goodput_gpu_link_bytes_per_second", ("link", "direction")),
    "clock": ("goodput_gpu_clock_hertz", ("clock",)),
    "clock_limit": ("goodput_gpu_clock_limit_hertz", ("clock", "kind")),
    "performance_state": ("goodput_gpu_performance_state", ()),
    "fan": ("goodput_gpu_fan_speed_ratio", ()),
    "temperature": ("goodput_gpu_temperature_celsius", ("sensor",)),
    "temperature_limit": ("goodput_gpu_temperature_limit_celsius", ("limit",)),
    "temperature_margin": ("goodput_gpu_temperature_margin_celsius", ()),
    "temperature_limit_margin": ("goodput_gpu_temperature_limit_margin_celsius", ("limit",)),
    "power": ("goodput_gpu_power_watts", ()),
    "power_instant": ("goodput_gpu_power_instant_watts", ()),
    "power_limit": ("goodput_gpu_power_limit_watts", ()),
    "power_setting": ("goodput_gpu_power_setting_watts", ("kind",)),
    "energy": ("goodput_gpu_energy_joules_total", ()),
    "memory": ("goodput_gpu_memory_bytes", ("kind",)),
    "bar1": ("goodput_gpu_bar1_bytes", ("kind",)),
    "throttled": ("goodput_gpu_throttled", ("reason",)),
    "throttle": ("goodput_gpu_throttle_seconds_total", ("reason",)),
    "ecc": ("goodput_gpu_ecc_errors_total", ("kind", "scope")),
    "ecc_location": ("goodput_gpu_ecc_location_errors_total", ("kind", "scope", "location")),
    "ecc_threshold": ("goodput_gpu_ecc_threshold_exceeded", ()),
    "ecc_mode": ("goodput_gpu_ecc_enabled", ("kind",)),
    "remap_banks": ("goodput_gpu_row_remap_banks", ("spare",)),
    "rows_remapped": ("goodput_gpu_rows_remapped", ("kind",)),
    "pages_retired": ("goodput_gpu_pages_retired", ("kind",)),
    "recovery": ("goodput_gpu_recovery_action", ("action",)),
    "pcie_replays": ("goodput_gpu_pcie_replays_total", ()),
    "pcie_errors": ("goodput_gpu_pcie_errors_total", ("kind",)),
    "pcie_generation": ("goodput_gpu_pcie_generation", ("kind",)),
    "pcie_lanes": ("goodput_gpu_pcie_lanes", ("kind",)),
    "nvlink_errors": ("goodput_gpu_nvlink_errors_total", ("kind",)),
    "nvlink_bit_errors": ("goodput_gpu_nvlink_bit_error_ratio", ("kind",)),
    "nvlink_up": ("goodput_gpu_nvlink_up", ("link",)),
    "nvlink_link_errors": ("goodput_gpu_nvlink_link_errors_total", ("link", "kind")),
    "nvlink_link_bytes": ("goodput_gpu_nvlink_link_bytes_total", ("link", "direction")),
    "nvlink_link_rate": ("goodput_gpu_nvlink_link_bytes_per_second", ("link", "direction")),
    "c2c_links": ("goodput_gpu_c2c_links", ("kind",)),
    "c2c_errors": ("goodput_gpu_c2c_errors_total", ("kind",)),
    "fabric": ("goodput_gpu_fabric_state", ("state",)),
    "fabric_problem": ("goodput_gpu_fabric_problem", ("problem",)),
    "vgpu_license": ("goodput_gpu_vgpu_license", ("kind",)),
    "xgmi_links": ("goodput_gpu_xgmi_links", ("state",)),
    "dcgm_field": ("goodput_gpu_dcgm_field", ("field",)),
    "processes": ("goodput_gpu_processes", ()),
}
# The same of what is no GPU; its label is named like the kind.
COMPONENT_FAMILIES: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "nvswitch": {
        "temperature": ("goodput_nvswitch_temperature_celsius", ()),
        "temperature_limit": ("goodput_nvswitch_temperature_limit_celsius", ("limit",)),
        "power": ("goodput_nvswitch_power_watts", ("rail",)),
        "sxid": ("goodput_nvswitch_last_sxid", ("class",)),
        "reset_required": ("goodput_nvswitch_reset_required", ()),
        "link_up": ("goodput_nvswitch_link_up", ("link",)),
        "link_errors": ("goodput_nvswitch_link_errors_total", ("link", "kind")),
    },
    "cpu": {
        "activity": ("goodput_cpu_activity_ratio", ("mode",)),
        "temperature": ("goodput_cpu_temperature_celsius", ()),
        "temperature_limit": ("goodput_cpu_temperature_limit_celsius", ("limit",)),
        "power": ("goodput_cpu_power_watts", ("part",)),
        "power_limit": ("goodput_cpu_power_limit_watts", ()),
    },
}
GPUS_MAX, COMPONENTS_MAX = 256, 64
READINGS_MAX = 512
PROCESSES_MAX = 256
PODS_MAX, EVENT_KINDS_MAX = 32, 32
EVENTS_MAX = 256
PROBLEMS_MAX = 32
TEXT_MAX = 255
SAMPLE_BYTES_MAX = 4 << 20


class SampleError(ValueError):
    """A sample is malformed or out of bounds."""


class Gpu(Struct, frozen=True):
    """One GPU, or one MIG instance of a GPU, at one moment.

    uuid      as the driver writes it: GPU-…, MIG-…; for AMD the unique id, else the PCI address
    pci       domain:bus:device.function in lower case, such as 0000:3b:00.0; "" where unknown
    parent    for a MIG instance: the UUID of its GPU, else ""
    profile   for a MIG instance: such as 1g.10gb
    instance  for a MIG instance: the number of its GPU instance, which several compute instances share
    readings  see FAMILIES
    pids      processes on it, in this PID namespace; None where the driver does not know
    lost      the driver knows the GPU and can no longer reach it; `why` is its error
    pods      (pod, namespace, container) of those that use it, where the driver's source names them
    last_xid  the last XID, from a driver that has no events: 0 for none, None where it has no value
    event_kinds  (kind, severity) of the events that its driver reports beside the readings, in a full sample
    """

    uuid: str
    index: int = 0
    model: str = ""
    pci: str = ""
    driver_version: str = ""
    parent: str = ""
    profile: str = ""
    instance: str = ""
    readings: dict[str, float] = {}
    pids: list[int] | None = None
    lost: bool = False
    why: str = ""
    last_xid: int | None = None
    pods: list[tuple[str, str, str]] = []
    event_kinds: list[tuple[str, str]] = []


class Component(Struct, frozen=True):
    """Something beside the GPUs, at one moment: `kind` is nvswitch or cpu, `readings` see COMPONENT_FAMILIES."""

    kind: str
    name: str
    readings: dict[str, float] = {}


class Event(Struct, frozen=True):
    """Something that happened to a GPU, a link or a driver.

    kind      xid, ecc, row_remap, page_retired, throttle, lost, back, link_down, link_up, link_flap, ...
    time_ns   Unix time
    code      the XID, or 0; `name` is its meaning
    severity  info, warning or critical
    count     how often it happened since the last sample
    """

    kind: str
    device: str
    time_ns: int
    code: int = 0
    name: str = ""
    severity: str = "warning"
    text: str = ""
    count: int = 1


class Sample(Struct, frozen=True):
    """All GPUs of one driver. Where `full` is false, only fast changing values were read: activity, power, energy.

    source  what the driver reads, where it has a choice: such as "sysfs (libamd_smi.so is not installed)"
    implausible  how many readings were left out by their values, by family (plausible.py)
    """

    driver: str
    monotonic_ns: int
    gpus: list[Gpu]
    full: bool = True
    events: list[Event] = []
    problems: list[str] = []
    source: str = ""
    components: list[Component] = []
    implausible: dict[str, int] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sample)


def encode(sample: Sample) -> bytes:
    return _encoder.encode(sample)


def decode(body: bytes) -> Sample:
    """Decode and check a sample. Raises SampleError."""
    if len(body) > SAMPLE_BYTES_MAX:
        raise SampleError(f"sample of {len(body)} bytes, at most {SAMPLE_BYTES_MAX} allowed")
    try:
        sample = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise SampleError(f"malformed sample: {error}") from None
    check(sample)
    return sample


def check(sample: Sample) -> None:
    """Raise SampleError where a sample is out of bounds or has a reading of an unknown family."""
    if valid_part(sample) is not sample:
        raise SampleError(valid_part(sample).problems[0])


def valid_part(sample: Sample) -> Sample:
    """The sample itself if it is valid, else without what is not; the first error becomes its first problem."""
    errors: list[str] = []
    for records, most in (
        (sample.gpus, GPUS_MAX),
        (sample.events, EVENTS_MAX),
        (sample.problems, PROBLEMS_MAX),
        (sample.components, COMPONENTS_MAX),
    ):
        if len(records) > most:
            errors.append(f"{len(records)} {type(records[0]).__name__} records, at most {most} allowed")
    gpus = [_valid_gpu(gpu, errors) for gpu in sample.gpus[:GPUS_MAX]]
    components = [_valid_component(one, errors) for one in sample.components[:COMPONENTS_MAX]]
    if not errors:
        return sample
    return structs.replace(
        sample,
        gpus=[gpu for gpu in gpus if gpu is not None],
        components=[one for one in components if one is not None],
        events=sample.events[-EVENTS_MAX:],
        problems=[errors[0], *sample.problems][:PROBLEMS_MAX],
    )


def _valid_gpu(gpu: Gpu, errors: list[str]) -> Gpu | None:
    name = f"GPU {gpu.uuid[:64]!r}"
    texts = (gpu.uuid, gpu.model, gpu.pci, gpu.driver_version, gpu.parent, gpu.profile, gpu.instance, gpu.why)
    texts += tuple(name for pod in gpu.pods for name in pod)
    if not gpu.uuid or max(map(len, texts)) > TEXT_MAX:
        errors.append(f"{name}: no UUID, or a text of more than {TEXT_MAX} characters")
        return None
    readings = _valid_readings(name, "", gpu.readings, errors)
    if len(gpu.pods) > PODS_MAX:
        errors.append(f"{name}: {len(gpu.pods)} pods, at most {PODS_MAX} allowed")
        gpu = structs.replace(gpu, pods=gpu.pods[:PODS_MAX])
    if len(gpu.event_kinds) > EVENT_KINDS_MAX:
        errors.append(f"{name}: {len(gpu.event_kinds)} kinds of events, at most {EVENT_KINDS_MAX} allowed")
        gpu = structs.replace(gpu, event_kinds=gpu.event_kinds[:EVENT_KINDS_MAX])
    if len(gpu.readings) <= READINGS_MAX and len(gpu.pids or ()) <= PROCESSES_MAX:
        return structs.replace(gpu, readings=readings) if len(readings) < len(gpu.readings) else gpu
    errors.append(f"{name}: more than {READINGS_MAX} readings or {PROCESSES_MAX} processes")
    readings = dict(list(readings.items())[:READINGS_MAX])
    return structs.replace(gpu, readings=readings, pids=gpu.pids and gpu.pids[:PROCESSES_MAX])


def _valid_component(component: Component, errors: list[str]) -> Component | None:
    name = f"{component.kind[:16]} {component.name[:64]!r}"
    if component.kind not in COMPONENT_FAMILIES or not 0 < len(component.name) <= TEXT_MAX:
        errors.append(f"{name}: an unknown kind, or no name")
        return None
    readings = _valid_readings(name, component.kind, component.readings, errors)
    if len(readings) > READINGS_MAX:
        errors.append(f"{name}: more than {READINGS_MAX} readings")
        readings = dict(list(readings.items())[:READINGS_MAX])
    return (
        component
        if len(readings) == len(component.readings)
        else structs.replace(component, readings=readings)
    )


# Keys that were found valid, by kind of component ("" for a GPU): nearly all of those in every sample.
KNOWN_MAX = 4096
_known: defaultdict[str, set[str]] = defaultdict(set)


def _valid_readings(name: str, kind: str, readings: dict[str, float], errors: list[str]) -> dict[str, float]:
    known = _known[kind]
    if known.issuperset(readings) and _are_finite(readings.values()):
        return readings
    series = functools.partial(component_series_of, kind) if kind else series_of
    found = {}
    for key, value in readings.items():
        try:
            series(key)
            if not abs(value) <= sys.float_info.max:
                raise SampleError(f"{key[:64]!r} is {value}")
            found[key] = value
        except SampleError as error:
            errors.append(f"{name}: {error}")
    if len(found) == len(readings) and len(known) < KNOWN_MAX:
        known.update(found)
    return found


def _are_finite(values: Iterable[float]) -> bool:
    try:
        return math.isfinite(sum(values))
    except OverflowError:  # an integer that no float holds
        return False


@functools.lru_cache(4096)
def series_of(key: str) -> tuple[str, dict[str, str]]:
    """A reading's series and its labels besides `gpu`. Raises SampleError for a key of an unknown family."""
    return _series_in(FAMILIES, key)


@functools.lru_cache(4096)
def component_series_of(kind: str, key: str) -> tuple[str, dict[str, str]]:
    """The same of a component, whose label is named like its kind."""
    return _series_in(COMPONENT_FAMILIES[kind], key)


def _series_in(families: dict[str, tuple[str, tuple[str, ...]]], key: str) -> tuple[str, dict[str, str]]:
    family, *values = key.split("/")
    found = families.get(family)
    if found is None or len(values) != len(found[1]) or len(key) > TEXT_MAX:
        raise SampleError(f"unknown reading {key[:64]!r}")
    return found[0], dict(zip(found[1], values, strict=True))
