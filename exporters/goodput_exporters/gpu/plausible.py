"""What a reading can be at most and at least, by family, for all drivers: what is outside is absent, and counted.

Drivers answer "success" with garbage now and then: a power of 3.7 MW, a clock of 4 PHz. The limits are wide, beyond any
device there is, so that a new one needs no change; a counter may have any value that a device can reach in its life.
"""

from __future__ import annotations

import math
from collections import Counter

from msgspec import structs

from goodput_exporters.gpu.sample import Component, Gpu, Sample

_FLAG, _ANY = (0.0, 1.0), (-math.inf, math.inf)
_WATTS, _HERTZ, _BYTES_A_SECOND = (0.0, 1e4), (0.0, 1e10), (0.0, 1e13)
_CELSIUS, _CELSIUS_MARGIN = (-273.0, 300.0), (-300.0, 300.0)
_MEMORY_BYTES, _SENT_BYTES = (0.0, float(1 << 44)), (0.0, 1e21)
_EVENTS, _SECONDS, _COUNT = (0.0, 1e15), (0.0, 1e10), (0.0, 1e6)
# A little over 1, as a ratio of two measurements may be; a fan may turn faster than it is rated.
LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("activity",), (0.0, 1.05)),
    **dict.fromkeys(("fan",), (0.0, 2.0)),
    **dict.fromkeys(("clock", "clock_limit"), _HERTZ),
    **dict.fromkeys(("temperature", "temperature_limit"), _CELSIUS),
    **dict.fromkeys(("temperature_margin", "temperature_limit_margin"), _CELSIUS_MARGIN),
    **dict.fromkeys(("power", "power_instant", "power_limit", "power_setting"), _WATTS),
    **dict.fromkeys(("energy",), (0.0, 1e13)),
    **dict.fromkeys(("memory", "bar1"), _MEMORY_BYTES),
    **dict.fromkeys(("link_bytes", "nvlink_link_bytes"), _SENT_BYTES),
    **dict.fromkeys(("link_rate", "nvlink_link_rate"), _BYTES_A_SECOND),
    **dict.fromkeys(
        ("nvlink_bit_errors",), (0.0, 15.0)
    ),  # four bits of mantissa, as they are with exponent 0
    **dict.fromkeys(("ecc", "ecc_location", "pcie_replays", "pcie_errors"), _EVENTS),
    **dict.fromkeys(("nvlink_errors", "nvlink_link_errors", "c2c_errors", "link_errors"), _EVENTS),
    **dict.fromkeys(("rows_remapped", "pages_retired", "remap_banks"), _EVENTS),
    **dict.fromkeys(("throttle",), _SECONDS),
    **dict.fromkeys(("throttled", "ecc_threshold", "ecc_mode", "recovery", "reset_required"), _FLAG),
    **dict.fromkeys(("nvlink_up", "link_up", "fabric", "fabric_problem"), _FLAG),
    **dict.fromkeys(("pcie_generation", "pcie_lanes", "performance_state", "sxid"), _COUNT),
    **dict.fromkeys(("c2c_links", "xgmi_links", "vgpu_license", "processes"), _COUNT),
    "dcgm_field": _ANY,  # of any kind: an operator lists them
}
_PARTS_OF_TOTAL = ("used", "free", "reserved")


def is_plausible(key: str, value: float) -> bool:
    least, most = LIMITS[key.partition("/")[0]]
    return math.isfinite(value) and least <= value <= most


def plausible_part(sample: Sample) -> Sample:
    """The sample, which is valid, without implausible readings, which are counted in `implausible` by family."""
    dropped: Counter[str] = Counter(sample.implausible)
    before = dropped.total()
    gpus = [_cleaned(gpu, dropped) for gpu in sample.gpus]
    components = [_cleaned(component, dropped) for component in sample.components]
    if dropped.total() == before:
        return sample
    return structs.replace(sample, gpus=gpus, components=components, implausible=dict(dropped))


def _cleaned(device: Gpu | Component, dropped: Counter[str]):
    readings = device.readings
    wrong = [key for key, value in readings.items() if not is_plausible(key, value)]
    for kind in ("memory", "bar1"):
        total = readings.get(f"{kind}/total")
        if total is not None and f"{kind}/total" not in wrong:
            parts = (f"{kind}/{part}" for part in _PARTS_OF_TOTAL)
            wrong += [key for key in parts if key not in wrong and readings.get(key, 0.0) > total]
    if not wrong:
        return device
    dropped.update(key.partition("/")[0] for key in wrong)
    return structs.replace(
        device, readings={key: value for key, value in readings.items() if key not in wrong}
    )
