"""Colours and PromQL for the states of the account and the statuses of a run.

Productive is blue, waiting yellow to red, planned work green and purple, down dark, unknown grey. These are the
built-in page's colours; neighbours in a bar are distinguishable for colour-blind readers.
"""

from __future__ import annotations

from dashboards.panels import GREEN, RED, YELLOW

STATE_COLOURS = {
    "productive": "#1261b0",
    "checkpoint": "#86cab2",
    "lost": "#712b2e",
    "loader": "#e28c03",
    "evaluation": "#4ba18c",
    "down": "#4f5a63",
    "h2d": "#f7e04f",
    "compile": "#c3a6f9",
    "queue": "#97a9b8",
    "communication": "#ecaa68",
    "startup": "#a572c9",
    "unattributed": "#c9d2de",
    "straggler": "#af2d11",
    "restore": "#5e248a",
    "unobserved": "#78818c",
    "launch": "#c07b35",
    "stall": "#c6585c",
}
# Statuses as numbers, since a state timeline is drawn from numbers.
STATUSES = {
    "running": (1, STATE_COLOURS["productive"]),
    "finished": (2, STATE_COLOURS["evaluation"]),
    "cancelled": (3, STATE_COLOURS["evaluation"]),
    "failed": (4, STATE_COLOURS["stall"]),
    "unobserved": (5, STATE_COLOURS["unobserved"]),
    "down": (6, STATE_COLOURS["lost"]),
}
GOOD_IS_HIGH = [(None, RED), (0.7, YELLOW), (0.85, GREEN)]
MFU_STEPS = [(None, RED), (0.2, YELLOW), (0.35, GREEN)]
COVERAGE_STEPS = [(None, RED), (0.95, YELLOW), (0.999, GREEN)]


def account_share(run: str, window: str) -> str:
    """Share of each state in the GPU time that the account gained over a window; the shares add up to 1.

    A state's gain is clamped at 0, because a restart moves time from productive to lost, and divided by the
    sum of the clamped gains. Subtracting the earlier value, or 0 if there was none, counts a state from its
    first sample; delta() would not. deploy/prometheus/recording.yml does the same for fixed windows.
    """
    now = f"max by (state) (goodput_gpu_seconds{{{run}}})"
    before = f"max by (state) (goodput_gpu_seconds{{{run}}} offset {window})"
    gain = f"clamp_min({now} - ({before} or {now} * 0), 0)"
    return f"{gain} / on () group_left () (sum({gain}) > 0)"


def status(selector: str = "") -> str:
    """The status of each run as its number in STATUSES; the largest where aggregators differ."""
    return "max by (run) (" + " or ".join(
        f'goodput_run_info{{{selector}status="{name}"}} * {number}' for name, (number, _) in STATUSES.items()
    ) + ")"  # fmt: skip
