"""Progress of a run by its account document: steps, rate, time left, goodput, the slowest rank.

The time left is that of the missing steps at what a kept step has cost the run so far, everything included that recurs:
waits, checkpoints, evaluations, steps that were done again, the time down and the starts after restarts. What was paid
once (the first start) is left out. So it expects failures and checkpoints at the rate seen so far, and none before the
first. Unknown without a declared number of steps, while the run hangs, and
where it ended without having finished.

    progress = progress_of(document, steps_per_second=2.4)
    print(progress.share, progress.remaining_seconds)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from goodput.account import FINAL_STATUSES


class Progress(NamedTuple):
    """The progress of one run. None is unknown.

    `done` counts steps whose work is kept, from the training's first one, a resume included; `total` is the declared
    number. `steps_per_second` is the job's present rate, not summed over ranks. `goodput` is of the run so far.
    `slowest_because` names the phase, or else the state, in which the slowest rank is slow.
    """

    run: str
    status: str
    done: int | None
    total: int | None
    steps_per_second: float | None
    remaining_seconds: float | None
    goodput: float | None
    restarts: int
    slowest_rank: int | None
    slowest_because: str | None

    @property
    def share(self) -> float | None:
        """The share of the declared steps that is done, at most 1."""
        return None if self.done is None or not self.total else min(self.done / self.total, 1.0)


def progress_of(document: Mapping[str, Any], steps_per_second: float | None = None) -> Progress:
    """The progress of the run of an account document, whose present rate the caller knows."""
    whole, straggler = document["whole_run"], document["straggler"]
    total = whole["steps"] if whole and whole["basis"] == "declared" else None
    return Progress(
        run=document["run"],
        status=document["status"],
        done=whole["done"] if whole else None,
        total=total,
        steps_per_second=steps_per_second,
        remaining_seconds=remaining_seconds(document) if total else None,
        goodput=document["factors"]["goodput"],
        restarts=len(document["restarts"]),
        slowest_rank=straggler["culprit"],
        slowest_because=straggler["because_phase"] or straggler["because"],
    )


def remaining_seconds(document: Mapping[str, Any]) -> float | None:
    """Wall seconds from the account's end to that of the whole run.

    0 for a run that finished. None while it hangs, and for one that ended otherwise: whether it goes on is unknown.
    """
    whole = document["whole_run"]
    if document["status"] in FINAL_STATUSES:
        return 0.0 if document["status"] == "finished" else None
    if whole is None or not whole["gpu_seconds"] or document["hang"]:
        return None
    return whole["seconds"] * max(1 - document["gpu_seconds"] / whole["gpu_seconds"], 0.0)
