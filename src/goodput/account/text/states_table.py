"""The rows of the table of states, and which host or stage explains more than a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goodput.account.states import MEANINGS, STATES
from goodput.account.text.formats import tenths

# A host or stage is shown if waiting for it explains this much more than waiting for its slowest rank.
MORE_SHARE_MIN = 0.05


def state_rows(document: Mapping[str, Any]) -> list[tuple[str, float, str, str]]:
    """(state, GPU-seconds, percent, meaning) of the states that have time; the percents sum to 100.0."""
    states = [(state, document["states"][state]) for state in STATES]
    shares = tenths([seconds for _, seconds in states])
    return [
        (state, seconds, f"{share // 10}.{share % 10}", MEANINGS[state])
        for (state, seconds), share in zip(states, shares, strict=True)
        if seconds > 0
    ]


def more_than_rank(share: float, shares: list[tuple], count: int) -> tuple | None:
    """The (host or stage, share) that explains more of the waiting than the rank that explains `share` of it.

    `shares` are largest first. None where `count` is 1, or where the rank alone explains as much.
    """
    return shares[0] if count > 1 and shares and shares[0][1] >= share + MORE_SHARE_MIN else None
