"""Each NVLink of a GPU, and its chip-to-chip links, through NVML: state, errors, bytes. Read once a minute.

NVML has these under other field numbers in each generation; the newest form of which one field is answered is used.
Of NVLink 5 only the errors that precede the failure of a link are read link by link; their sums have all kinds.
"""

from __future__ import annotations

from collections.abc import Iterable

from goodput_exporters.gpu.nvml.queries import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    KIB,
    NOT_SUPPORTED,
    Field,
    Query,
    call,
    query_fields,
)

LINKS_MAX = 18
_ERROR = "nvlink_link_errors/{link}/{kind}"
_BYTES = "nvlink_link_bytes/{link}/{kind}"
# NVML_FI_DEV_NVLINK_COUNT_* (NVLink 5) and NVML_FI_DEV_NVLINK_ERROR_DL_* (4), with the link as scope.
_ERRORS_5 = {
    "receive": 208,
    "transmit_discards": 212,
    "recovery_failed": 214,
    "recovery_events": 215,
    "symbol": 221,
}
_ERRORS_4 = {"replay": 161, "recovery": 162, "crc": 163}
# NVML_FI_DEV_NVLINK_*_ERROR_COUNT_L0 and _L6: up to NVLink 3 a field for each of twelve links.
_ERRORS_3 = {"crc_flit": (32, 96), "crc_data": (39, 102), "replay": (46, 108), "recovery": (53, 114)}
# NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and _RCV_BYTES in bytes, _THROUGHPUT_DATA_TX and _RX in KiB.
_BYTES_5, _BYTES_3 = {"transmit": 202, "receive": 204}, {"transmit": 138, "receive": 139}
# NVML_FI_DEV_C2C_LINK_*.
_C2C_COUNT, _C2C_STATUS = Field(170, "c2c_links/present"), 171
_C2C_ERRORS = {"crc": 231, "replay": 232, "replay_back_to_back": 233}


def _by_scope(
    key: str, numbers: dict[str, int], links: Iterable[int], factor: float = 1.0
) -> tuple[Field, ...]:
    return tuple(
        Field(number, key.format(link=link, kind=kind), factor, link)
        for link in links
        for kind, number in numbers.items()
    )


def _by_number(links: Iterable[int]) -> tuple[Field, ...]:
    return tuple(
        Field(first + link if link < 6 else seventh + link - 6, _ERROR.format(link=link, kind=kind))
        for link in links
        if link < 12
        for kind, (first, seventh) in _ERRORS_3.items()
    )


def _answered(nvml, device, forms: Iterable[tuple[Field, ...]]) -> dict[str, float]:
    """The readings of the first form of which a field is answered."""
    for fields in filter(None, forms):
        try:
            answers = query_fields(nvml, device.handle, fields)
        except nvml.NVMLError as error:
            if error.value in (FUNCTION_NOT_FOUND, NOT_SUPPORTED):
                return {}
            raise
        found = {
            field.key: value * field.factor
            for field, error, value in answers
            if not error and value is not None
        }
        if found:
            return found
    return {}


def _nvlinks(nvml, device) -> dict[str, float]:
    states: dict[int, int] = {}
    for link in range(LINKS_MAX):
        try:
            states[link] = call(nvml, "nvmlDeviceGetNvLinkState", device.handle, link)
        except nvml.NVMLError as error:
            if error.value not in (INVALID_ARGUMENT, NOT_SUPPORTED):
                raise
            if error.value == INVALID_ARGUMENT:
                break  # The GPU has fewer links.
    if not states:
        raise nvml.NVMLError(NOT_SUPPORTED)
    readings = {f"nvlink_up/{link}": float(state == 1) for link, state in states.items()}
    errors = (_by_scope(_ERROR, _ERRORS_5, states), _by_scope(_ERROR, _ERRORS_4, states), _by_number(states))
    readings |= _answered(nvml, device, errors)
    bytes_ = (_by_scope(_BYTES, _BYTES_5, states), _by_scope(_BYTES, _BYTES_3, states, KIB))
    return readings | _answered(nvml, device, bytes_)


def _c2c(nvml, device) -> dict[str, float]:
    ((_, error, count),) = query_fields(nvml, device.handle, (_C2C_COUNT,))
    if error or not count:
        # A GPU on PCIe has no such link, and answers either.
        raise nvml.NVMLError(NOT_SUPPORTED if error in (0, INVALID_ARGUMENT) else error)
    links = range(int(min(count, LINKS_MAX)))
    fields = [Field(_C2C_STATUS, "c2c_links/active", 1.0, link) for link in links]
    fields += [
        Field(number, f"c2c_errors/{kind}", 1.0, link)
        for kind, number in _C2C_ERRORS.items()
        for link in links
    ]
    readings = {_C2C_COUNT.key: float(count)}
    for field, error, value in query_fields(nvml, device.handle, tuple(fields)):
        if not error and value is not None:
            readings[field.key] = readings.get(field.key, 0.0) + value
    return readings


LINKS = (Query("nvmlDeviceGetNvLinkState", _nvlinks), Query("field 170 (c2c_links)", _c2c))
