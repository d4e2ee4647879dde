"""Bits and numbers that NVML and DCGM share: throttling, recovery actions, NVLink bit error ratios, the NVLink fabric."""

from __future__ import annotations

# nvmlClocksEventReason*, DCGM field 112. The first means that there is no work.
THROTTLE_REASONS = {
    0x001: "idle",
    0x002: "app_clocks",
    0x004: "power",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}
# nvmlDeviceGpuRecoveryAction_t, DCGM field 1523.
RECOVERY_ACTIONS = (
    *("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
    *("recover_imex_domain", "bus_reset", "system_reboot"),
)

_CELSIUS_MIN = -273
# nvmlGpuFabricState_t; dcgmFabricManagerStatus_t adds what follows.
FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed", "failed")
# Bits of nvmlGpuFabricInfo_v2_t's health mask, DCGM field 174: of each problem 0 not supported, 1 true, 2 false.
_FABRIC_PROBLEMS = {"degraded_bandwidth": 0, "route_recovery": 2, "route_unhealthy": 4, "access_timeout": 6}
_FABRIC_CONFIGURATION = 8  # four bits: 0 not supported, 1 correct, else what is wrong


def fabric_state(number: int) -> str:
    return FABRIC_STATES[number] if 0 <= number < len(FABRIC_STATES) else "unknown"


def fabric_problems(mask: int) -> dict[str, float]:
    """1 for each problem in the health mask, 0 where it is known not to be."""
    values = {name: mask >> shift & 3 for name, shift in _FABRIC_PROBLEMS.items()}
    found = {f"fabric_problem/{name}": float(value == 1) for name, value in values.items() if value}
    if configuration := mask >> _FABRIC_CONFIGURATION & 0xF:
        found["fabric_problem/misconfigured"] = float(configuration != 1)
    return found


def throttle_readings(bits: int) -> dict[str, float]:
    return {f"throttled/{reason}": float(bool(bits & bit)) for bit, reason in THROTTLE_REASONS.items()}


def recovery_key(action: float) -> str:
    is_known = 0 <= action < len(RECOVERY_ACTIONS)
    return f"recovery/{RECOVERY_ACTIONS[int(action)] if is_known else 'unknown'}"


def bit_error_ratio(raw: float) -> float:
    """NVLink's ratio from its four bits of mantissa above eight of exponent (nvml.h, NVML_NVLINK_BER_*): m x 10^-e."""
    mantissa, exponent = int(raw) >> 8 & 0xF, int(raw) & 0xFF
    return mantissa * 10.0**-exponent


def lowest(key: str) -> int:
    """The lowest value that a reading can have: only temperatures and margins of them are below 0."""
    return _CELSIUS_MIN if key.startswith("temperature") else 0
