"""A rank whose own calls of collectives take long to return.

A call of a process group starts a collective and returns; what comes then is waiting, for other ranks or for the network.
So the time until it returns is the rank's own, and while it lasts all others wait. In a backward pass it makes the pass
longer. In a call that is waited for at once it is in the phase `communication`, as are the others, who wait as
long, so that no rank seems to be late: only these times show which rank it is.

They are the host's. With a device's clock it is not known what of them the device has felt, and a call may be held up by
a full queue of the device: then no rank is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_low
from typing import NamedTuple

from goodput.account.collectives.operation_sums import OTHER, Key, issue_times
from goodput.account.ranks import RankAccount, values

# A rank is slow if its calls take so much of a step longer than those of its peers ...
STEP_SHARE_MIN = 0.02
# ... and so many times as long: where all wait for a core, some wait longer.
TIMES_MIN = 3


class SlowIssue(NamedTuple):
    """The slowest such rank, and its operation with the largest difference; times per step, `usual_ns` of its peers."""

    rank: int
    group: str
    operation: str
    issue_ns: int
    usual_ns: int
    step_ns: int


def slow_issue(ranks: Sequence[RankAccount], peers: Callable[[int], object]) -> SlowIssue | None:
    """The rank that loses most of a step in this way; `peers` returns what a rank is compared within."""
    names = ("rank", "kept_ns", "kept_steps", "device_ns", "exposed")
    columns = zip(*(values(ranks, name) for name in names), strict=True)
    known = [one for one in columns if one[2] and one[4]]
    if any(device_ns for *_, device_ns, _ in known):
        return None
    by_key: dict[tuple[object, Key], list[tuple[int, int, int, int]]] = {}
    for rank, kept_ns, kept_steps, _, exposed in known:
        for key, ns in issue_times(exposed[-1].sums):
            if key != OTHER:
                by_key.setdefault((peers(rank), key), []).append((ns, rank, kept_ns, kept_steps))
    slow = [
        SlowIssue(rank, *key, ns, usual_ns, kept_ns // kept_steps)
        for (_, key), times in by_key.items()
        for usual_ns in (median_low(ns for ns, *_ in times),)
        for ns, rank, kept_ns, kept_steps in times
        if ns >= TIMES_MIN * usual_ns and (ns - usual_ns) * kept_steps > STEP_SHARE_MIN * kept_ns
    ]
    return max(slow, key=lambda one: (one.issue_ns - one.usual_ns, -one.rank), default=None)
