"""Health events as lines of the agent's own log: when, what, where, whom it hit, what it means.

In: events with the ranks that they hit. Out: the text of one line each, or none where there were too many: LINES_MAX at
once, half of them kept for critical ones, and one more each SECONDS_PER_LINE; the next line that is written says how
many were left out. What is left out is lost to the log alone: it is counted and pushed like any other. At most
HITS_SHOWN ranks are named in a line.

    Lines(time.monotonic_ns).line(event, [("r1", 3)])
    # 2026-01-02T03:04:05Z critical: xid 79 on GPU-5d…: GPU fell off the bus; reboot the node; hit r1 rank 3
"""

from __future__ import annotations

import time
from collections.abc import Callable

from goodput.wire.identity import clean_text
from goodput_exporters.gpu.nvidia.xid import lookup
from goodput_exporters.gpu.sample import Event

LINES_MAX, SECONDS_PER_LINE = 20, 6.0
HITS_SHOWN, TEXT_MAX, TIME_SECONDS_MAX = 8, 255, 253_402_300_799

# What to do first, by xid.Xid.action.
DO = {
    "none": "nothing to do",
    "restart_app": "the process on it has to be started again",
    "reset_gpu": "reset the GPU",
    "reboot_node": "reboot the node",
    "check_hardware": "have the hardware checked",
    "check_link": "check the NVLinks",
    "update_software": "update the driver",
    "watch": "watch whether it comes again",
    "see_other_xid": "see the XID beside it",
}
# What an event of a kind means, and of this severity where that makes a difference.
MEANS = {
    ("lost", ""): "the driver does not reach the GPU any more; what ran on it has failed or will",
    ("back", ""): "the driver reaches the GPU again",
    ("ecc", "info"): "errors in GPU memory that were corrected",
    ("ecc", ""): "errors in GPU memory that could not be corrected: data was lost; reset the GPU",
    ("row_remap", "critical"): "GPU memory has no spare rows left; the GPU has to be replaced",
    ("row_remap", ""): "bad rows of GPU memory are replaced by spare ones, some only after a reset",
    ("page_retired", ""): "bad pages of GPU memory are not used any more, some only after a reboot",
    ("throttle", ""): "the hardware holds the GPU's clocks down; look at cooling and power",
    ("link_down", ""): "no traffic over this link",
    ("link_up", ""): "traffic over this link again",
    ("link_flap", ""): "it may come again; check cable and transceiver",
    ("retransmits", ""): "packets are lost on the way; communication waits for them",
    ("driver", ""): "the process that asks this driver was replaced; its GPUs could not be seen meanwhile",
}


class Lines:
    """`monotonic_ns` is for the bound alone. Used under its owner's lock."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns):
        self._monotonic_ns = monotonic_ns
        self._left, self._filled_ns = float(LINES_MAX), monotonic_ns()
        self._left_out = 0

    def line(self, event: Event, hits: list[tuple[str, int]]) -> str | None:
        """The line of one event, None where it is one too many."""
        now_ns = self._monotonic_ns()
        more = max(now_ns - self._filled_ns, 0) / 1e9 / SECONDS_PER_LINE
        self._left, self._filled_ns = min(self._left + more, LINES_MAX), now_ns
        if self._left < (1 if event.severity == "critical" else 1 + LINES_MAX / 2):
            self._left_out += 1
            return None
        self._left -= 1
        before = f" ({self._left_out} events before it were not written here)" if self._left_out else ""
        self._left_out = 0
        return line_of(event, hits) + before


def line_of(event: Event, hits: list[tuple[str, int]]) -> str:
    """The text of one event, without line ends whatever a driver said."""
    seconds = min(max(event.time_ns // 10**9, 0), TIME_SECONDS_MAX)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    code = f" {event.code}" if event.code else ""
    parts = [*told(event), meaning(event), f"hit {whom(hits)}" if hits else "hit no rank"]
    said = "; ".join(dict.fromkeys(part for part in parts if part))
    kind, device = clean_text(event.kind, 32), clean_text(event.device, TEXT_MAX)
    return f"{at} {clean_text(event.severity, 32)}: {kind}{code} on {device or 'an unknown device'}: {said}"


def told(event: Event) -> list[str]:
    """What the driver said, without an XID's advice, which `meaning` puts in words."""
    said = [part for part in event.text.split(", ") if not part.startswith("to do: ")]
    name = lookup(event.code).name if event.kind == "xid" and not event.name else event.name
    text = clean_text(", ".join(said), TEXT_MAX)
    # "hw_thermal" is in "clocks held down: hw_thermal".
    return [text] if name and name in text else [clean_text(name, TEXT_MAX), text]


def meaning(event: Event) -> str:
    if event.kind == "xid":
        return DO.get(lookup(event.code).action, "")
    return MEANS.get((event.kind, event.severity)) or MEANS.get((event.kind, ""), "")


def whom(hits: list[tuple[str, int]]) -> str:
    """Ranks by run, as `r1 ranks 3, 4`; those beyond the bound are a number."""
    by_run: dict[str, list[int]] = {}
    for run, rank in sorted(set(hits))[:HITS_SHOWN]:
        by_run.setdefault(run, []).append(rank)
    shown = [
        f"{clean_text(run, 80)} rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        for run, ranks in by_run.items()
    ]
    left = len(set(hits)) - HITS_SHOWN
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")
