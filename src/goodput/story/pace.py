"""Changes of pace: stretches of a run in which a step took longer or shorter, by state.

The run is cut into equal buckets. A step's length in a bucket is the time of all ranks there over their steps, without
checkpoints, evaluations and pauses; waiting for slower ranks counts as communication, as in `goodput compare`. Where
that changes its level is found by `goodput.estimates.levels`. Fewer than LENGTH_MIN buckets or STEPS_MIN
steps that stand out, such as one with an epoch's end in it, are no change of pace.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from goodput.account.states import INDEX, PLANNED, STATES
from goodput.estimates.levels import cuts
from goodput.story.recording import Recording

POINTS_MAX = 480
STEPS_A_BUCKET = 3
LENGTH_MIN, STEPS_MIN = 5, 5  # buckets and steps of a level
CHANGE_MIN = 0.05
NOISE_MIN = 0.005  # of a step
SPENT_SHARE_MIN = 0.2  # of the time in steps that a bucket has in the median
_COUNTED = np.array([state not in PLANNED and state != "stall" for state in STATES])
_COMMUNICATION, _WAITS = INDEX["communication"], (INDEX["straggler"], INDEX["bubble"])


class Level(NamedTuple):
    """From `start_ns` to `end_ns` a step took `ns`, by state `states`; all GPUs made `steps` of them, each counted."""

    start_ns: int
    end_ns: int
    ns: float
    states: dict[str, float]
    steps: float


def levels(recording: Recording) -> list[Level]:
    """The run's levels of pace, in order; one if it never changed, none of too few steps."""
    edges, sums = _buckets(recording)
    if not len(sums):
        return []
    steps, spent = sums[:, 0], sums[:, 1:].sum(axis=1)
    known = np.flatnonzero((steps > 0) & (spent > SPENT_SHARE_MIN * np.median(spent)))
    if len(known) < 2 * LENGTH_MIN:
        return []
    # Of logarithms, so that a change counts by its share.
    places = [0, *cuts(np.log(spent[known] / steps[known]), NOISE_MIN), len(known)]
    # What is shorter is a bucket with a change in it, or a few steps that stand out.
    parts = [known[low:high] for low, high in pairwise(places) if high - low >= LENGTH_MIN]
    width_ns = edges[1] - edges[0]
    parts = [part for part in parts if _steps_each(sums[part], width_ns) >= STEPS_MIN]
    return _joined([_level(edges, sums, part) for part in parts], int(width_ns))


def _buckets(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Edges in ns, and per bucket the GPU-steps and GPU-ns by state (buckets, 1 + states)."""
    tracks = [track for track in recording.tracks.values() if len(track.rows) > 1]
    if not tracks:
        return np.zeros(0), np.zeros((0, 0))
    by_rank: dict[int, int] = {}
    for track in tracks:
        by_rank[track.attempt.rank] = by_rank.get(track.attempt.rank, 0) + len(track.rows)
    points = min(POINTS_MAX, int(np.median(list(by_rank.values()))) // STEPS_A_BUCKET)
    if points < 2 * LENGTH_MIN:
        return np.zeros(0), np.zeros((0, 0))
    start = min(int(track.rows[0, 0]) for track in tracks)
    end = max(int(track.rows[-1, 0]) for track in tracks)
    edges = np.linspace(start, end, points + 1)
    sums = np.zeros((points, 1 + len(STATES)))
    for track in tracks:
        sums += np.diff(track.at(edges), axis=0) * track.attempt.devices * recording.weight
    for state in _WAITS:
        sums[:, 1 + _COMMUNICATION] += sums[:, 1 + state]
        sums[:, 1 + state] = 0
    sums[:, 1:][:, ~_COUNTED] = 0
    return edges, sums


def _steps_each(sums: np.ndarray, width_ns: float) -> float:
    """About how many steps each GPU made in these buckets."""
    return sums[:, 0].sum() * width_ns * len(sums) / sums[:, 1:].sum()


def _level(edges: np.ndarray, sums: np.ndarray, buckets: np.ndarray) -> Level:
    own = sums[buckets].sum(axis=0)
    states = {state: float(own[1 + i] / own[0]) for i, state in enumerate(STATES) if own[1 + i] > 0}
    return Level(
        int(edges[buckets[0]]), int(edges[buckets[-1] + 1]), sum(states.values()), states, float(own[0])
    )


def _joined(parts: list[Level], bucket_ns: int) -> list[Level]:
    """Neighbours that differ by less than CHANGE_MIN are one level; each begins in the bucket before its first."""
    while len(parts) > 1:
        apart = [abs(now.ns / before.ns - 1) for before, now in pairwise(parts)]
        at = apart.index(min(apart))
        if apart[at] >= CHANGE_MIN:
            break
        parts = [*parts[:at], _both(parts[at], parts[at + 1]), *parts[at + 2 :]]
    return [
        one._replace(start_ns=max(before.end_ns, one.start_ns - bucket_ns)) if before is not None else one
        for before, one in zip([None, *parts], parts, strict=False)
    ]


def _both(one: Level, other: Level) -> Level:
    steps = one.steps + other.steps
    states = {
        name: (one.states.get(name, 0.0) * one.steps + other.states.get(name, 0.0) * other.steps) / steps
        for name in {**one.states, **other.states}
    }
    return Level(one.start_ns, other.end_ns, sum(states.values()), states, steps)
