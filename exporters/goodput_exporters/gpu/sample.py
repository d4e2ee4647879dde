"""What a driver says of a GPU, whichever driver it is: the records that cross from a driver's process to the agent.

In: what drivers/ read. Out: `Sample`s, which the agent merges (one GPU may be known to two drivers) and turns into
series. A *reading* is one number under a key `family/label/...`, as `activity/sm` or `link_bytes/nvlink/transmit`;
FAMILIES says which series and labels that is. A reading that a driver does not know is left out: missing is never 0.

Units are those of the series: ratios of 0 to 1, bytes, hertz, watts, joules, seconds, degrees Celsius.

    gpu = Gpu(uuid="GPU-5d…", index=0, model="NVIDIA H100 80GB HBM3", readings={"activity/sm": 0.42})
    body = encode(Sample(driver="nvml", monotonic_ns=…, gpus=[gpu])); sample = decode(body)
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

# The key's first part: the series, and the labels that its other parts are, in order.
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    # Share of the time since the last sample. Units: utilization (any kernel ran, the driver's own coarse measure),
    # engine (compute or graphics engine active), sm, sm_occupancy, tensor, dram, fp64, fp32, fp16, memory_controller.
    "activity": ("goodput_gpu_activity_ratio", ("unit",)),
    "link_bytes": ("goodput_gpu_link_bytes_total", ("link", "direction")),
    "link_rate": ("goodput_gpu_link_bytes_per_second", ("link", "direction")),
    "clock": ("goodput_gpu_clock_hertz", ("clock",)),
    "temperature": ("goodput_gpu_temperature_celsius", ("sensor",)),
    "power": ("goodput_gpu_power_watts", ()),
    "power_limit": ("goodput_gpu_power_limit_watts", ()),
    "energy": ("goodput_gpu_energy_joules_total", ()),
    "memory": ("goodput_gpu_memory_bytes", ("kind",)),
    "throttled": ("goodput_gpu_throttled", ("reason",)),
    "throttle": ("goodput_gpu_throttle_seconds_total", ("reason",)),
    "ecc": ("goodput_gpu_ecc_errors_total", ("kind", "scope")),
    "rows_remapped": ("goodput_gpu_rows_remapped", ("kind",)),
    "pages_retired": ("goodput_gpu_pages_retired", ("kind",)),
    "recovery": ("goodput_gpu_recovery_action", ("action",)),
    "xid": ("goodput_gpu_xid_errors_total", ("xid", "class")),
    "pcie_replays": ("goodput_gpu_pcie_replays_total", ()),
    "pcie_generation": ("goodput_gpu_pcie_generation", ("kind",)),
    "pcie_lanes": ("goodput_gpu_pcie_lanes", ("kind",)),
    "nvlink_errors": ("goodput_gpu_nvlink_errors_total", ("kind",)),
    "processes": ("goodput_gpu_processes", ()),
}
GPUS_MAX = 256
READINGS_MAX = 256
PROCESSES_MAX = 256
EVENTS_MAX = 256
PROBLEMS_MAX = 32
TEXT_MAX = 255
SAMPLE_BYTES_MAX = 4 << 20


class SampleError(ValueError):
    """What came from a driver's process is no sample; the text says what is wrong."""


class Gpu(Struct, frozen=True):
    """One GPU, or one MIG instance of one, at one moment.

    uuid      as the driver writes it: GPU-…, MIG-…; for AMD the unique id, else the PCI address
    pci       domain:bus:device.function in lower case, as 0000:3b:00.0; "" where unknown
    parent    uuid of the GPU that a MIG instance is part of, else ""
    profile   of a MIG instance, as 1g.10gb
    readings  see FAMILIES
    pids      processes on it, of this PID namespace; None where the driver does not say
    lost      the driver knows it and cannot reach it any more
    """

    uuid: str
    index: int = 0
    model: str = ""
    pci: str = ""
    driver_version: str = ""
    parent: str = ""
    profile: str = ""
    readings: dict[str, float] = {}
    pids: list[int] | None = None
    lost: bool = False


class Event(Struct, frozen=True):
    """Something that happened to a GPU or a link. `time_ns` is unix time.

    kind    xid, ecc, row_remap, page_retired, throttle, lost, back
    code    the XID, or 0
    name    what the code means; `severity` is info, warning or critical
    """

    kind: str
    device: str
    time_ns: int
    code: int = 0
    name: str = ""
    severity: str = "warning"
    text: str = ""


class Sample(Struct, frozen=True):
    """All GPUs of one driver. `full` is False where only what changes fast was read: activity, power, energy.

    `window_ns` is the time that activities are the mean over, up to `monotonic_ns`; 0 where it is not known.
    """

    driver: str
    monotonic_ns: int
    gpus: list[Gpu]
    full: bool = True
    window_ns: int = 0
    events: list[Event] = []
    problems: list[str] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sample)


def encode(sample: Sample) -> bytes:
    return _encoder.encode(sample)


def decode(body: bytes) -> Sample:
    """A sample from its bytes, checked. Raises SampleError."""
    if len(body) > SAMPLE_BYTES_MAX:
        raise SampleError(f"a sample of {len(body)} bytes, {SAMPLE_BYTES_MAX} at most")
    try:
        sample = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise SampleError(f"malformed sample: {error}") from None
    check(sample)
    return sample


def check(sample: Sample) -> None:
    """Raise SampleError where a sample is out of bounds, or has a reading of no family."""
    bounds = ((sample.gpus, GPUS_MAX), (sample.events, EVENTS_MAX), (sample.problems, PROBLEMS_MAX))
    for records, most in bounds:
        if len(records) > most:
            raise SampleError(f"{len(records)} {type(records[0]).__name__} in a sample, {most} at most")
    for gpu in sample.gpus:
        if not gpu.uuid or len(gpu.readings) > READINGS_MAX or len(gpu.pids or ()) > PROCESSES_MAX:
            raise SampleError(f"GPU {gpu.uuid[:64]!r}: no uuid, or too many readings or processes")
        texts = (gpu.uuid, gpu.model, gpu.pci, gpu.driver_version, gpu.parent, gpu.profile)
        if max(map(len, texts)) > TEXT_MAX:
            raise SampleError(f"GPU {gpu.uuid[:64]!r}: a text of over {TEXT_MAX} characters")
        for key, value in gpu.readings.items():
            if value != value or value in (float("inf"), -float("inf")):
                raise SampleError(f"GPU {gpu.uuid[:64]!r}: {key[:64]!r} is {value}")
            place_of(key)


def place_of(key: str) -> tuple[str, dict[str, str]]:
    """The series of a reading and its labels besides `gpu`. Raises SampleError for a key of no family."""
    family, *values = key.split("/")
    found = FAMILIES.get(family)
    if found is None or len(values) != len(found[1]) or len(key) > TEXT_MAX:
        raise SampleError(f"no reading is called {key[:64]!r}")
    return found[0], dict(zip(found[1], values, strict=True))
