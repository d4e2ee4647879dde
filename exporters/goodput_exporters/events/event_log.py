"""Formats events as log lines with their meaning and the ranks they affect, within a rate limit.

At most LINES_MAX lines at once, half of them reserved for critical events, refilled by one per SECONDS_PER_LINE. The
next line has the number of omitted events; they are still counted and pushed.

    RateLimitedFormatter().format(event, [("r1", 3)])
    # 2026-01-02T03:04:05Z critical: xid 79 on GPU-5d…: GPU fell off the bus; reboot the node; affects r1 rank 3
"""

from __future__ import annotations

import time
from collections.abc import Callable

from goodput.wire.identity import clean_text
from goodput_exporters.gpu.nvidia.xid import lookup
from goodput_exporters.gpu.sample import Event

LINES_MAX, SECONDS_PER_LINE = 20, 6.0
RANKS_SHOWN, TEXT_MAX, TIME_SECONDS_MAX = 8, 255, 253_402_300_799

# The first remedy, by Xid.action.
REMEDIES = {
    "none": "nothing to do",
    "restart_app": "restart the process on it",
    "restart_vm": "restart the virtual machine",
    "reset_gpu": "reset the GPU",
    "reboot_node": "reboot the node",
    "check_hardware": "have the hardware checked",
    "check_link": "check the NVLinks",
    "update_software": "update the driver",
    "watch": "act if it happens again",
    "see_other_xid": "see the XID reported with it",
    "look_up": "the kernel's log has the driver's text of it",
    "see_kernel_log": "its sub-code in the kernel's log says whether the GPU needs a reset",
}
# Meaning by kind and severity; "" where the severity makes no difference.
MEANINGS = {
    ("lost", ""): "the driver cannot reach the GPU; processes on it have failed or will",
    ("back", ""): "the driver reaches the GPU again",
    ("ecc", "info"): "GPU memory errors that were corrected",
    ("ecc", "warning"): "the memory is failing; what reads it next fails; reset the GPU",
    ("ecc", ""): "uncorrectable GPU memory errors: data was lost; reset the GPU",
    ("row_remap", "critical"): "GPU memory has no spare rows left; replace the GPU",
    ("row_remap", ""): "bad rows of GPU memory are replaced by spare ones, some only after a reset",
    ("page_retired", "critical"): "bad pages of GPU memory are still in use; replace the GPU",
    ("page_retired", ""): "bad pages of GPU memory are no longer used, some only after a reboot",
    ("throttle", ""): "the hardware slows the GPU's clocks down; check cooling and power",
    ("gpu_reset", ""): "processes on the GPU have failed",
    ("gpu_hang", ""): "processes on the GPU will fail; the driver resets it",
    ("page_fault", ""): "a program used an address that it does not have; see the kernel's log",
    ("link_down", ""): "no traffic over this link",
    ("link_up", ""): "traffic over this link again",
    ("link_flap", ""): "it may happen again; check cable and transceiver",
    ("retransmits", ""): "packets are lost on the way, and communication waits for them",
    ("driver", ""): "the worker process of this driver was replaced; its GPUs could not be seen meanwhile",
}


class RateLimitedFormatter:
    """Not thread-safe."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns):
        self._monotonic_ns = monotonic_ns
        self._tokens, self._filled_ns = float(LINES_MAX), monotonic_ns()
        self._omitted = 0

    def format(self, event: Event, ranks: list[tuple[str, int]]) -> str | None:
        """The line of an event, None where it exceeds the rate limit."""
        now_ns = self._monotonic_ns()
        refill = max(now_ns - self._filled_ns, 0) / 1e9 / SECONDS_PER_LINE
        self._tokens, self._filled_ns = min(self._tokens + refill, LINES_MAX), now_ns
        if self._tokens < (1 if event.severity == "critical" else 1 + LINES_MAX / 2):
            self._omitted += 1
            return None
        self._tokens -= 1
        suffix = f" ({self._omitted} earlier events omitted from this log)" if self._omitted else ""
        self._omitted = 0
        return format_event(event, ranks) + suffix


def format_event(event: Event, ranks: list[tuple[str, int]]) -> str:
    """One line, without line breaks whatever a driver wrote."""
    seconds = min(max(event.time_ns // 10**9, 0), TIME_SECONDS_MAX)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    code = f" {event.code}" if event.code else ""
    affected = f"affects {format_ranks(ranks)}" if ranks else "affects no rank"
    parts = dict.fromkeys([*describe(event), meaning(event), affected])
    text = "; ".join(part for part in parts if part)
    kind, device = clean_text(event.kind, 32), clean_text(event.device, TEXT_MAX)
    return f"{at} {clean_text(event.severity, 32)}: {kind}{code} on {device or 'an unknown device'}: {text}"


def describe(event: Event) -> list[str]:
    """The event's name and text, without an XID's action, which `meaning` puts in words."""
    parts = [part for part in event.text.split(", ") if not part.startswith("to do: ")]
    name = lookup(event.code).name if event.kind == "xid" and not event.name else event.name
    text = clean_text(", ".join(parts), TEXT_MAX)
    # "hw_thermal" is contained in "clocks held down: hw_thermal".
    return [text] if name and name in text else [clean_text(name, TEXT_MAX), text]


def meaning(event: Event) -> str:
    if event.kind == "xid":
        # A sub-code may say otherwise than the number.
        action = event.text.partition("to do: ")[2].partition(",")[0]
        return REMEDIES.get(action) or REMEDIES.get(lookup(event.code).action, "")
    return MEANINGS.get((event.kind, event.severity)) or MEANINGS.get((event.kind, ""), "")


def format_ranks(ranks: list[tuple[str, int]]) -> str:
    """Ranks by run, such as `r1 ranks 3, 4`; at most RANKS_SHOWN."""
    by_run: dict[str, list[int]] = {}
    for run, rank in sorted(set(ranks))[:RANKS_SHOWN]:
        by_run.setdefault(run, []).append(rank)
    shown = [
        f"{clean_text(run, 80)} rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        for run, numbers in by_run.items()
    ]
    left = len(set(ranks)) - RANKS_SHOWN
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")
