"""Colours of the account's states, of phases and of a run's statuses, and the thresholds that several boards share.

The states have the project's palette, `goodput.account.text.state_colours`.
"""

from __future__ import annotations

from dashboards.panels import GREEN, RED, YELLOW
from goodput.account.text.state_colours import DARK, LIGHT

STATE_COLOURS = LIGHT
# Of phases that are not states, colours that no state has.
PHASE_COLOURS = {
    "forward": "#1261b0",
    "backward": "#47a3d1",
    "optimizer": "#d977b3",
    **{
        phase: STATE_COLOURS[phase]
        for phase in (
            "loader",
            "h2d",
            "communication",
            "checkpoint",
            "restore",
            "evaluation",
            "rollout",
            "compile",
        )
    },
    "none": STATE_COLOURS["unattributed"],
}
# Statuses as numbers, since a state timeline is drawn from numbers.
STATUSES = {
    # Legible as text on a dark ground.
    "running": (1, DARK["productive"]),
    "finished": (2, "#2e8b57"),
    "cancelled": (3, STATE_COLOURS["queue"]),
    "failed": (4, STATE_COLOURS["straggler"]),
    "abandoned": (5, STATE_COLOURS["down"]),
    "unobserved": (6, STATE_COLOURS["unobserved"]),
}
# A run that hangs is running; here it is told apart, above all others.
HANGING = 7
STATUS_MEANINGS = {
    **{number: (name, colour) for name, (number, colour) in STATUSES.items()},
    HANGING: ("hangs", RED),
}
# The same of every share of useful time, so that two of them in one colour are alike.
GOOD_IS_HIGH = [(None, RED), (0.7, YELLOW), (0.85, GREEN)]
MFU_STEPS = [(None, RED), (0.2, YELLOW), (0.35, GREEN)]
COVERAGE_STEPS = [(None, RED), (0.95, YELLOW), (0.999, GREEN)]
ONE_IS_BAD = [(None, GREEN), (1, RED)]
ONE_IS_GOOD = [(None, RED), (1, GREEN)]


def status_number(aggregation: str, selector: str = "") -> str:
    """The status of runs as its number in STATUS_MEANINGS; the largest where aggregators differ."""
    more = f"{selector}," if selector else ""
    numbers = (
        f'goodput_run_info{{{more}status="{name}"}} * {number}' for name, (number, _) in STATUSES.items()
    )
    hanging = f"(goodput_hang_seconds{f'{{{selector}}}' if selector else ''} > 0) * 0 + {HANGING}"
    return f"{aggregation} ({' or '.join([*numbers, hanging])})"
