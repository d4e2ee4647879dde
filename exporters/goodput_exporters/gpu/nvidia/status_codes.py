"""Bits and numbers that NVML and DCGM share: reasons for throttled clocks, recovery actions, NVLink bit error ratios."""

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


def throttle_readings(bits: int) -> dict[str, float]:
    return {f"throttled/{reason}": float(bool(bits & bit)) for bit, reason in THROTTLE_REASONS.items()}


def recovery_key(action: float) -> str:
    is_known = 0 <= action < len(RECOVERY_ACTIONS)
    return f"recovery/{RECOVERY_ACTIONS[int(action)] if is_known else 'unknown'}"


def bit_error_ratio(raw: float) -> float:
    """NVLink's ratio from its four bits of mantissa above eight of exponent (nvml.h, NVML_NVLINK_BER_*): m x 10^-e."""
    mantissa, exponent = int(raw) >> 8 & 0xF, int(raw) & 0xFF
    return mantissa * 10.0**-exponent
