"""A run over time for a page in a file, in the shape of the API's timeline: an account and own times of ranks per bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from goodput.account import Account
from goodput.account.states import STATES
from goodput.web.heat import heat

BUCKETS_MAX, BUCKETS_MIN = 60, 12
# For all buckets of a run: as many are made as this time allows, and none where even the fewest take much longer.
SECONDS, SECONDS_MAX = 5.0, 60.0


def timeline(
    account: Account,
    document: Mapping[str, Any],
    account_of: Callable[..., Account],
    seconds: float = SECONDS,
    seconds_max: float = SECONDS_MAX,
) -> dict | None:
    """The timeline of the run with this account and its document, None where it would take too long.

    `account_of(window=(start_ns, end_ns))` is the account of a part of the run's time. It reads the whole run each time,
    so the first one says how long the others take.
    """
    length_ns = account.end_ns - account.start_ns
    began = time.monotonic()
    account_of(window=(account.start_ns, account.end_ns))
    taken = max(time.monotonic() - began, 1e-6)
    buckets = min(max(int(seconds / taken), BUCKETS_MIN), BUCKETS_MAX, length_ns)
    if buckets < 1 or buckets * taken > seconds_max:
        return None
    edges = [account.start_ns + length_ns * i // buckets for i in range(buckets + 1)]
    # Each from the start on, so that a step that two buckets share counts where it ends.
    until = [account_of(window=(edges[0], edge)) for edge in edges[1:]]
    return {
        "start": document["start"],
        "end": document["end"],
        "buckets": [
            _bucket(edge, earlier, later)
            for edge, earlier, later in zip(pairwise(edges), [None, *until[:-1]], until, strict=True)
        ],
        "marks": [
            {
                "kind": "restart",
                "time": restart["time"],
                "end": None,
                "step": restart["resume_step"],
                "attempt": restart["attempt"],
            }
            for restart in document["restarts"]
        ],
        "sampled": None,
        "heat": heat(account, until),
    }


def _bucket(edge: tuple[int, int], earlier: Account | None, later: Account) -> dict:
    """What the account up to the later edge has more than that up to the earlier one."""
    before = [0] * len(STATES) if earlier is None else earlier.gpu_ns()
    more = [max(ns - ns_before, 0) for ns, ns_before in zip(later.gpu_ns(), before, strict=True)]
    return {
        "start": edge[0] / 1e9,
        "end": edge[1] / 1e9,
        "gpu_seconds": sum(more) / 1e9,
        "states": {state: ns / 1e9 for state, ns in zip(STATES, more, strict=True) if ns},
    }
