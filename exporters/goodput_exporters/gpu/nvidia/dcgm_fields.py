"""DCGM fields by field ID: the reading that each one is, and the conversion of raw values to base units.

The table is in dcgm_field_table.py. IDs are the keys because names are not stable: 4.6 renamed most of them, and 4.7 gave one of the new names to another
field. Missing is never 0: a blank value, one of the wrong type, a negative one (but for temperatures) and a share above 1.05
give no reading.

Sources: dcgm_fields.h, dcgm_fields.py and dcgmvalue.py of NVIDIA/DCGM (2.x to 4.6), dcgm-exporter's default counters,
NVIDIA's reference of field identifiers (4.7). Where they disagree: throttle times 240 to 247 are nanoseconds (header,
reference, measurements), though comments of the Python bindings say microseconds; 1009 to 1012 and 449 are rates,
though older counter files say counter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from goodput_exporters.gpu.nvidia.dcgm_field_table import (
    ENERGY_JOULES,
    EVENT_REASONS,
    FABRIC_HEALTH,
    FABRIC_STATUS,
    MEMORY_TEMPERATURE,
    PERFORMANCE_STATE,
    RECOVERY_ACTION,
    SM_CYCLES_ACTIVE,
    SM_CYCLES_ELAPSED,
    TABLE,
    UTILIZATION_RATIO,
    Field,
)
from goodput_exporters.gpu.nvidia.status_codes import (
    bit_error_ratio,
    fabric_problems,
    fabric_state,
    lowest,
    recovery_key,
    throttle_readings,
)

# dcgmvalue.py: 16 values from each of these on mean blank, not found, not supported, not permitted. A 64-bit counter
# may exceed the 32-bit blanks, so only those 16 values are blank, and 2**47 is blank only in doubles.
INT32_BLANK = 0x7FFFFFF0
INT64_BLANK = 0x7FFFFFFFFFFFFFF0
FP64_BLANK = 140_737_488_355_328.0

_RAW_BIT_ERROR_RATIOS = (1215, 1217)
# A share of time may be rounded to more than 1, but not beyond this.
_ACTIVITY_MAX = 1.05
_PERFORMANCE_STATE_MAX = 15
FIELDS: dict[int, Field] = {field.number: field for field in TABLE}
_BY_NAME: dict[str, Field] = {name: field for field in TABLE for name in field.names}


def is_blank(raw: object, double: bool) -> bool:
    """Whether a DCGM value means "no value". So does any string: none of these fields is one."""
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not abs(raw) < math.inf:
        return True
    if double:
        return raw >= FP64_BLANK
    return raw >= INT64_BLANK or INT32_BLANK <= raw <= INT32_BLANK + 15


def number_of(field: Field, raw: object) -> float | None:
    """A field's raw value, None where it is blank or impossible."""
    if not isinstance(raw, int | float) or is_blank(raw, field.double):
        return None
    return raw if raw >= lowest(field.key) else None


def field_of_name(name: str, raw: object = None) -> Field | None:
    """The field with this name in any DCGM version, None for a field that is not in the table.

    DCGM_FI_DEV_GPU_UTIL_RATIO is field 203 in 4.6, an integer percentage, and field 1613 from 4.7 on, a ratio, which
    dcgm-exporter writes with a decimal point: the value's type decides.
    """
    field = _BY_NAME.get(name)
    if field is not None and name == "DCGM_FI_DEV_GPU_UTIL_RATIO" and isinstance(raw, float):
        return FIELDS[UTILIZATION_RATIO]
    return field


def readings_of(values: Mapping[int, object], instance: bool = False) -> dict[str, float]:
    """Readings of one device from its raw values by field ID; for a GPU instance, only its own."""
    found: dict[str, float] = {}
    for number in sorted(values):
        field = FIELDS.get(number)
        if field is None or (instance and not field.instance):
            continue
        value = number_of(field, values[number])
        if value is None or (number == ENERGY_JOULES and "energy" in found):
            continue
        if number == MEMORY_TEMPERATURE and not value:  # GDDR has no sensor.
            continue
        if number == EVENT_REASONS:
            found.update(throttle_readings(int(value)))
        elif number in _RAW_BIT_ERROR_RATIOS:
            found[field.key] = bit_error_ratio(value)
        elif number == RECOVERY_ACTION:
            found[recovery_key(value)] = 1.0
        elif number == FABRIC_STATUS:
            found[f"fabric/{fabric_state(int(value))}"] = 1.0
        elif number == FABRIC_HEALTH:
            found.update(fabric_problems(int(value)))
        elif number == PERFORMANCE_STATE and value > _PERFORMANCE_STATE_MAX:
            continue  # unknown
        elif field.key:
            multiply, divide = field.scale
            reading = value * multiply / divide
            if reading <= _ACTIVITY_MAX or not field.key.startswith("activity/"):
                found[field.key] = reading
    if "pages_retired/pending" in found:
        found["pages_retired/pending"] = min(1.0, found["pages_retired/pending"])
    if "link_rate/nvlink/transmit" in found and "link_rate/nvlink/receive" in found:
        found.pop("link_rate/nvlink/both", None)
    return found


class SmCycles:
    """SM activity between two calls from cycle totals (1084, 1085), for a GPU without field 1002.

    The first call for a device, and one after a reset, gives none.
    """

    def __init__(self):
        self._before: dict[object, tuple[float, float]] = {}

    def add_activity(self, device: object, values: Mapping[int, object], readings: dict[str, float]) -> None:
        """Add activity/sm to `readings` where they lack it."""
        elapsed = number_of(FIELDS[SM_CYCLES_ELAPSED], values.get(SM_CYCLES_ELAPSED))
        active = number_of(FIELDS[SM_CYCLES_ACTIVE], values.get(SM_CYCLES_ACTIVE))
        before = self._before.pop(device, None)
        if elapsed is None or active is None:
            return
        self._before[device] = elapsed, active
        if before is not None and elapsed > before[0] and 0 <= active - before[1] <= elapsed - before[0]:
            readings.setdefault("activity/sm", (active - before[1]) / (elapsed - before[0]))

    def keep(self, devices) -> None:
        """Drop other devices."""
        self._before = {device: pair for device, pair in self._before.items() if device in devices}


def instance_uuid(parent: str, instance: int | str) -> str:
    """A UUID for a GPU instance, which has none in DCGM, in CUDA's old form (MIG-GPU-…/1)."""
    return f"MIG-{parent}/{instance}"
