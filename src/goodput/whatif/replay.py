"""The length of steps from the own times of ranks that wait for each other.

A step ends when its slowest rank has done its own work and the exchange that is unavoidable is done: the largest own
time plus the smallest communication of any rank, since the last to arrive does not wait. Both change from step to
step, so the second slowest rank limits what a faster one brings. In a pipeline of p stages with m microbatches a step
takes every stage's time once per microbatch, and the slowest stage's for the other m - 1: the sum of w / m over the
stages plus (m - 1) / m of the largest w (Huang et al., "GPipe", 2019).
"""

from __future__ import annotations

import numpy as np

from goodput.whatif.steps import Team


def exchange(team: Team) -> np.ndarray:
    """What of each step no rank's own work explains, in ns: communication that even the last rank pays."""
    if not team.stages:
        return team.communication.min(axis=1)
    return np.maximum(recorded(team) - _together(team, team.work), 0.0)


def lengths(team: Team, work: np.ndarray | None = None, exchanged: float = 1.0) -> np.ndarray:
    """Length of each step in ns with this work (steps, ranks), and this factor of the exchange."""
    return _together(team, team.work if work is None else work) + exchange(team) * exchanged


def recorded(team: Team) -> np.ndarray:
    """Mean length of each step over its ranks, in ns, as it was recorded."""
    return (team.own.sum(axis=2) + team.communication).mean(axis=1)


def unexplained(team: Team) -> float:
    """Part of a step, on average, that own times and waits leave open: ranks leave an exchange together, so both add up
    to the same for all of them.
    """
    spent = team.own.sum(axis=2) + team.communication
    return float(np.abs(spent - spent.mean(axis=1, keepdims=True)).mean() / max(spent.mean(), 1.0))


def _together(team: Team, work: np.ndarray) -> np.ndarray:
    """How long it takes until all ranks have done this work (steps, ranks)."""
    if not team.stages:
        return work.max(axis=1)
    stages = np.array(team.stages)
    slowest = np.stack([work[:, stages == stage].max(axis=1) for stage in np.unique(stages)])
    if team.microbatches is None:
        return slowest.max(axis=0)
    share = 1 / team.microbatches
    return share * slowest.sum(axis=0) + (1 - share) * slowest.max(axis=0)


# Steps within which a rank's times are compared with its peers': times drift over a run.
BLOCK = 64


def as_the_median(times: np.ndarray, rank: int, peers: np.ndarray) -> np.ndarray:
    """The times (steps,) of a rank, column `rank` of `times`, were they distributed as those of the median peer.

    Within blocks of steps its shortest time becomes the median of its peers' shortest and so on, where that is less. So
    it has peers' variation from step to step too, without being as slow as another rank in the very same steps.
    """
    found = times[:, rank].astype(float)
    for low in range(0, len(times), BLOCK):
        # A short rest belongs to the block before it.
        high = len(times) if len(times) - low < 2 * BLOCK else low + BLOCK
        block = times[low:high]
        order = np.argsort(block[:, rank], kind="stable")
        usual = np.median(np.sort(block[:, peers], axis=0), axis=1)
        found[low + order] = np.minimum(block[order, rank], usual)
        if high == len(times):
            break
    return found
