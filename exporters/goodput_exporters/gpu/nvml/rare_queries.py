"""The NVML queries of what changes rarely: limits, errors by place, spare rows, fabric, licence. Read once a minute.

Units and numbers are those of NVML's reference, as in queries.py. On Ada and later GPUs NVML no longer has limits of
temperature as temperatures but as margins (T.Limit): which of the two families a GPU has depends on that.
"""

from __future__ import annotations

import ctypes

from goodput_exporters.gpu.nvidia.status_codes import fabric_problems, fabric_state
from goodput_exporters.gpu.nvml.queries import MEGA, MILLI, Field, Query, call, number_query, structure

# nvmlTemperatureThresholds_t and NVML_FI_DEV_TEMPERATURE_*_TLIMIT.
_TEMPERATURE_LIMITS = {
    "shutdown": (0, 193),
    "slowdown": (1, 194),
    "memory_max": (2, 195),
    "core_max": (3, 196),
}
_CLOCKS = {"sm": 1, "memory": 2, "video": 3}  # nvmlClockType_t
# NVML_FI_DEV_ECC_SBE_VOL_L1 and following: single and double bit errors by place; the CBU has only double ones.
_ECC = {
    "volatile": {"l1": (7, 8), "l2": (9, 10), "device": (11, 12), "register": (13, 14), "texture": (15, 16), "cbu": (0, 17)},
    "aggregate": {"l1": (18, 19), "l2": (20, 21), "device": (22, 23), "register": (24, 25), "texture": (26, 27), "cbu": (0, 28)},
}  # fmt: skip
_SRAM = 7  # NVML_MEMORY_LOCATION_SRAM, which has no field

RARE_FIELDS = (
    Field(1, "ecc_mode/current"),
    Field(2, "ecc_mode/pending"),
    *(
        Field(number, f"ecc_location/{kind}/{scope}/{place}")
        for scope, places in _ECC.items()
        for place, numbers in places.items()
        for kind, number in zip(("correctable", "uncorrectable"), numbers, strict=True)
        if number
    ),
    *(
        Field(number, f"temperature_limit_margin/{limit}")
        for limit, (_, number) in _TEMPERATURE_LIMITS.items()
    ),
)


def _constraints(nvml, device) -> dict[str, float]:
    low, high = call(nvml, "nvmlDeviceGetPowerManagementLimitConstraints", device.handle)  # mW
    return {"power_setting/min": low * MILLI, "power_setting/max": high * MILLI}


def _spare_rows(nvml, device) -> dict[str, float]:
    banks = call(nvml, "nvmlDeviceGetRowRemapperHistogram", device.handle)
    return {
        f"remap_banks/{spare}": getattr(banks, spare) for spare in ("max", "high", "partial", "low", "none")
    }


def _sram_threshold(nvml, device) -> dict[str, float]:
    status = structure(nvml, "c_nvmlEccSramErrorStatus_v1_t")
    call(nvml, "nvmlDeviceGetSramEccErrorStatus", device.handle, ctypes.byref(status))
    return {"ecc_threshold": bool(status.bThresholdExceeded)}


def _fabric(nvml, device) -> dict[str, float]:
    info = structure(nvml, "c_nvmlGpuFabricInfo_v2_t")
    call(nvml, "nvmlDeviceGetGpuFabricInfoV", device.handle, ctypes.byref(info))
    state = fabric_state(info.state)
    # The status is that of the registration with the fabric manager, once it is completed.
    readings = {f"fabric/{'failed' if state == 'completed' and info.status else state}": 1.0}
    if state == "completed":
        readings |= fabric_problems(info.healthMask)
    return readings


def _license(nvml, device) -> dict[str, float]:
    features = call(nvml, "nvmlDeviceGetGridLicensableFeatures_v4", device.handle)
    if not features.isGridLicenseSupported:
        return {"vgpu_license/supported": 0.0}
    found = features.gridLicensableFeatures[: features.licensableFeaturesCount]
    return {
        "vgpu_license/supported": 1.0,
        "vgpu_license/licensed": float(any(one.featureState for one in found)),
    }


def _sram_errors(kind: int, scope: int) -> Query:
    key = f"ecc_location/{('correctable', 'uncorrectable')[kind]}/{('volatile', 'aggregate')[scope]}/sram"
    return number_query(key, "nvmlDeviceGetMemoryErrorCounter", 1.0, kind, scope, _SRAM)


RARE = (
    *(number_query(f"clock_limit/{clock}/max", "nvmlDeviceGetMaxClockInfo", MEGA, at) for clock, at in _CLOCKS.items()),
    *(
        number_query(f"clock_limit/{clock}/application", "nvmlDeviceGetApplicationsClock", MEGA, _CLOCKS[clock])
        for clock in ("sm", "memory")
    ),
    number_query("power_setting/requested", "nvmlDeviceGetPowerManagementLimit", MILLI),  # mW
    number_query("power_setting/default", "nvmlDeviceGetPowerManagementDefaultLimit", MILLI),  # mW
    Query("nvmlDeviceGetPowerManagementLimitConstraints", _constraints),
    *(
        number_query(f"temperature_limit/{limit}", "nvmlDeviceGetTemperatureThreshold", 1.0, at)
        for limit, (at, _) in _TEMPERATURE_LIMITS.items()
    ),
    *(_sram_errors(kind, scope) for kind in (0, 1) for scope in (0, 1)),
    Query("nvmlDeviceGetSramEccErrorStatus", _sram_threshold),
    Query("nvmlDeviceGetRowRemapperHistogram", _spare_rows),
    Query("nvmlDeviceGetGpuFabricInfoV", _fabric),
    Query("nvmlDeviceGetGridLicensableFeatures", _license),
)  # fmt: skip
