"""The kinds of health events (schema.Health) that have a label of their own; series show any other as "other"."""

from __future__ import annotations

HEALTH_KINDS = (
    *("xid", "ecc", "row_remap", "page_retired", "throttle", "lost", "back", "missing", "driver_stuck"),
    *("link_down", "link_up", "link_flap", "retransmits", "driver"),
    *("gpu_reset", "gpu_hang", "page_fault", "other"),
)
