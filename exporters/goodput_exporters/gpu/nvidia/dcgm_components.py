"""DCGM's fields of what is no GPU: NVSwitches with their links, and NVIDIA's own CPUs (Grace).

Numbers and names as in dcgm_field_table.py. Of a core of a CPU and of traffic through a switch nothing is read: the
kernel has the former, and the unit of the latter is not documented.
"""

from __future__ import annotations

from typing import NamedTuple

from goodput_exporters.gpu.nvidia.dcgm_fields import is_blank
from goodput_exporters.gpu.nvidia.status_codes import lowest

_LINK_STATUS, _LINK_ACTIVE, _LINK_UNKNOWN = 870, 2, -1


class ComponentField(NamedTuple):
    """One field. `{link}` in the key is the number of the switch's link."""

    number: int
    kind: str
    key: str
    double: bool
    names: tuple[str, ...]


def _switch(number: int, key: str, *names: str) -> ComponentField:
    return ComponentField(number, "nvswitch", key, False, tuple(f"DCGM_FI_DEV_{name}" for name in names))


def _cpu(number: int, key: str, *names: str) -> ComponentField:
    return ComponentField(number, "cpu", key, True, tuple(f"DCGM_FI_DEV_{name}" for name in names))


TABLE = (
    _switch(705, "power/vdd", "NVSWITCH_POWER_VDD", "NVSWITCH_POWER_VDD_WATTS"),
    _switch(706, "power/dvdd", "NVSWITCH_POWER_DVDD", "NVSWITCH_POWER_DVDD_WATTS"),
    _switch(707, "power/hvdd", "NVSWITCH_POWER_HVDD", "NVSWITCH_POWER_HVDD_WATTS"),
    _switch(782, "link_errors/{link}/fatal", "NVSWITCH_LINK_FATAL_ERRORS"),
    _switch(783, "link_errors/{link}/non_fatal", "NVSWITCH_LINK_NON_FATAL_ERRORS"),
    _switch(784, "link_errors/{link}/replay", "NVSWITCH_LINK_REPLAY_ERRORS", "NVSWITCH_LINK_REPLAY_ERROR_TOTAL"),
    _switch(785, "link_errors/{link}/recovery", "NVSWITCH_LINK_RECOVERY_ERRORS", "NVSWITCH_LINK_RECOVERY_ERROR_TOTAL"),
    _switch(786, "link_errors/{link}/flit", "NVSWITCH_LINK_FLIT_ERRORS", "NVSWITCH_LINK_FLIT_ERROR_TOTAL"),
    _switch(787, "link_errors/{link}/crc", "NVSWITCH_LINK_CRC_ERRORS", "NVSWITCH_LINK_CRC_ERROR_TOTAL"),
    _switch(788, "link_errors/{link}/ecc", "NVSWITCH_LINK_ECC_ERRORS", "NVSWITCH_LINK_ECC_ERROR_TOTAL"),
    _switch(856, "sxid/fatal", "NVSWITCH_FATAL_ERRORS", "SXID_FATAL_ERROR"),
    _switch(857, "sxid/non_fatal", "NVSWITCH_NON_FATAL_ERRORS", "SXID_NON_FATAL_ERROR"),
    _switch(858, "temperature", "NVSWITCH_TEMPERATURE_CURRENT", "NVSWITCH_TEMP_CELSIUS"),
    _switch(859, "temperature_limit/slowdown", "NVSWITCH_TEMPERATURE_LIMIT_SLOWDOWN", "NVSWITCH_TEMP_SLOWDOWN_CELSIUS"),
    _switch(860, "temperature_limit/shutdown", "NVSWITCH_TEMPERATURE_LIMIT_SHUTDOWN", "NVSWITCH_TEMP_SHUTDOWN_CELSIUS"),
    _switch(864, "reset_required", "NVSWITCH_RESET_REQUIRED"),
    _switch(_LINK_STATUS, "link_up/{link}", "NVSWITCH_LINK_STATUS"),
    _cpu(1100, "activity/total", "CPU_UTIL_TOTAL", "CPU_UTIL_RATIO"),
    _cpu(1101, "activity/user", "CPU_UTIL_USER", "CPU_UTIL_USER_RATIO"),
    _cpu(1102, "activity/nice", "CPU_UTIL_NICE", "CPU_UTIL_NICE_RATIO"),
    _cpu(1103, "activity/system", "CPU_UTIL_SYS", "CPU_UTIL_SYS_RATIO"),
    _cpu(1104, "activity/irq", "CPU_UTIL_IRQ", "CPU_UTIL_IRQ_RATIO"),
    _cpu(1110, "temperature", "CPU_TEMP_CURRENT", "CPU_TEMP_CELSIUS"),
    _cpu(1111, "temperature_limit/warning", "CPU_TEMP_WARNING", "CPU_TEMP_WARNING_CELSIUS"),
    _cpu(1112, "temperature_limit/critical", "CPU_TEMP_CRITICAL", "CPU_TEMP_CRITICAL_CELSIUS"),
    _cpu(1130, "power/cpu", "CPU_POWER_UTIL_CURRENT", "CPU_POWER_WATTS"),
    _cpu(1131, "power_limit", "CPU_POWER_LIMIT", "CPU_POWER_LIMIT_WATTS"),
    _cpu(1132, "power/sysio", "SYSIO_POWER_UTIL_CURRENT"),
    _cpu(1133, "power/module", "MODULE_POWER_UTIL_CURRENT"),
)  # fmt: skip
FIELDS: dict[int, ComponentField] = {field.number: field for field in TABLE}
BY_NAME: dict[str, ComponentField] = {name: field for field in TABLE for name in field.names}


def reading_of(field: ComponentField, raw: object, link: str = "") -> dict[str, float]:
    """The field's reading; none where it is blank or impossible, or is a link's and no link is given."""
    if not isinstance(raw, int | float) or is_blank(raw, field.double):
        return {}
    if field.number == _LINK_STATUS:
        if raw == _LINK_UNKNOWN:
            return {}
        raw = float(raw == _LINK_ACTIVE)
    if raw < lowest(field.key) or (field.key.startswith("activity/") and raw > 1):
        return {}
    if "{link}" in field.key and not (link.isascii() and link.isdigit() and len(link) < 4):
        return {}
    return {field.key.format(link=link): float(raw)}
