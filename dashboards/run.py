"""goodput / Run: where the GPU time of one run goes, and why.

In: series of goodput.metrics and recording rules of deploy/prometheus/recording.yml. Out: one board of
fifteen panels, read from the top: how much of the GPU time was useful, where the rest went, what to do about
it, and what the ranks are doing. Per-rank series are merged by recording rules or cut by topk, so the board
costs the same for 8 ranks and for 8 000. Restarts, checkpoints, stalls and critical events of the hardware are
marked in every panel over time.

    python -m dashboards.generate
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.frame import frame, one_run
from dashboards.panels import mark
from dashboards.run_panels import PANELS, RUN
from dashboards.words import STATE_COLOURS

_AGE, _LIMIT = f"max(goodput_progress_age_seconds{{{RUN}}})", f"max(goodput_stall_threshold_seconds{{{RUN}}})"
# A checkpoint's age falls when the next one is committed.
_COMMITTED = f"max(resets(goodput_checkpoint_age_seconds{{{RUN}}}[$__rate_interval])) > 0"
_HEALTH = f'goodput_run_health_events{{{RUN},severity="critical"}}'
MARKS = {
    "Restarts": (f"max(changes(goodput_restarts{{{RUN}}}[$__rate_interval])) > 0", "Restart", "lost"),
    "Checkpoints": (_COMMITTED, "Checkpoint committed", "evaluation"),
    "Stalls": (f"{_AGE} > {_LIMIT}", "Stall", "stall"),
    "Hardware": (
        f"max(changes({_HEALTH}[$__rate_interval])) > 0",
        "Critical event of the hardware",
        "straggler",
    ),
}


def board() -> builders.Dashboard:
    return frame(
        "goodput-run",
        "Was every GPU-second of the run useful work, and if not, why, which rank, and what did it cost?",
        variables=[one_run()],
        panels=PANELS,
        marks=[mark(name, expr, title, STATE_COLOURS[state]) for name, (expr, title, state) in MARKS.items()],
    )
