"""goodput / Rank: what one rank does, on both clocks, and how it differs from the ranks that it meets.

In: series of goodput.metrics that the rank's node agent serves, and recording rules. Out: one board of fifteen panels for
one rank of one run; the rank is written into a box, since a list of ten thousand would be of no use.

    python -m dashboards.generate
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.frame import frame, one_run, rank
from dashboards.rank_panels import PANELS


def board() -> builders.Dashboard:
    return frame(
        "goodput-rank",
        "What does this rank spend its time on, what does its loader wait for, and is it slower than its group?",
        variables=[one_run(), rank()],
        panels=PANELS,
        time_from="now-30m",
    )
