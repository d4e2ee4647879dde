"""A run over time for a page in a file, in the shape of the API's timeline: an account per bucket and the restarts as marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from goodput.account import Account
from goodput.account.states import STATES

BUCKETS_MAX, BUCKETS_MIN = 60, 12
# Rows that are read for all buckets together; at some 30 us a row this takes up to 3 s.
ROWS_MAX = 100_000


def timeline(
    account: Account, document: Mapping[str, Any], rows: int, account_of: Callable[..., Account]
) -> dict | None:
    """The timeline of the run with this account and its document, None where it would take too long.

    `account_of(window=(start_ns, end_ns))` is the account of a part of the run's time and reads `rows` rows.
    """
    length_ns = account.end_ns - account.start_ns
    buckets = min(BUCKETS_MAX, ROWS_MAX // max(rows, 1), length_ns)
    if buckets < BUCKETS_MIN:
        return None
    edges = [account.start_ns + length_ns * i // buckets for i in range(buckets + 1)]
    return {
        "start": document["start"],
        "end": document["end"],
        "buckets": [_bucket(edge, account_of(window=edge)) for edge in pairwise(edges)],
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
        "heat": None,
    }


def _bucket(edge: tuple[int, int], account: Account) -> dict:
    return {
        "start": edge[0] / 1e9,
        "end": edge[1] / 1e9,
        "gpu_seconds": account.wall_gpu_ns() / 1e9,
        "states": {state: ns / 1e9 for state, ns in zip(STATES, account.gpu_ns(), strict=True) if ns},
    }
