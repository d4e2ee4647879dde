"""What could be changed in a run's steps, and how long they would take then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from goodput.estimates.mean import CONFIDENCE, mean_of
from goodput.estimates.student import t_quantile
from goodput.whatif import replay
from goodput.whatif.steps import OWN, Team

# A state is named if it is this part of what a rank takes longer than its peers.
STATE_SHARE_MIN = 0.8
CANDIDATES = 3  # slow ranks that are tried
_OF_RANK = {
    "productive": "compute",
    "loader": "loader",
    "h2d": "copies to the device",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "rollout": "rollouts",
    "unattributed": "time in no phase",
    "other": "other work",
}
GONE = {
    "loader": "no waiting for the loader",
    "h2d": "copies to the device hidden by compute",
    "checkpoint": "checkpoints saved in the background",
    "evaluation": "evaluation outside the run",
}


@dataclass(frozen=True)
class Change:
    """`lengths` gives the steps (ns) of a team that it concerns, else None."""

    kind: str
    text: str
    lengths: Callable[[Team], np.ndarray | None]
    state: str | None = None
    rank: int | None = None
    host: str | None = None


def waits_known(team: Team) -> bool:
    """Whether what ranks wait for each other was measured."""
    return len(team.ranks) == 1 or bool(team.communication.any())


def state_gone(state: str, text: str = "") -> Change:
    """On all ranks."""

    def lengths(team: Team) -> np.ndarray | None:
        return replay.lengths(team, team.work - team.state(state))

    return Change("state", text or GONE.get(state, f"no {state}"), lengths, state)


def communication_less(share: float) -> Change:
    """Hide this share of the exposed exchange behind compute."""
    text = "half of the communication overlapped" if share == 0.5 else f"communication less {share:.0%}"
    return Change("communication", text, lambda team: replay.lengths(team, None, 1 - share), "communication")


def spread_evenly() -> Change:
    """Each step's work spread evenly over the ranks, of a pipeline over its stages."""

    def lengths(team: Team) -> np.ndarray | None:
        if len(team.ranks) < 2:
            return None
        work = team.work
        return replay.lengths(team, np.broadcast_to(work.mean(axis=1, keepdims=True), work.shape))

    return Change("even", "each step's work spread evenly over ranks", lengths, "straggler")


def all_as_the_median() -> Change:
    """No rank slower than the median rank of its step.

    In a pipeline no rank is slower than the median of its stage, and no stage than the median of the others, which is
    what `slow_stage` gives the slowest. No step is longer than with one of its ranks, or a stage, as fast as the median:
    the ranks that stay as they are hold it up for at least as long as the median of all.
    """

    def lengths(team: Team) -> np.ndarray | None:
        if len(team.ranks) < 2:
            return None
        work, stages = team.work.copy(), np.array(team.stages or (0,) * len(team.ranks))
        for stage, ratio in _stage_ratios(team).items():
            of_stage = stages == stage
            work[:, of_stage] = ratio * np.minimum(work[:, of_stage], _lower_median(work[:, of_stage]))
        return replay.lengths(team, work)

    return Change("median", "all ranks as fast as the median", lengths, "straggler")


def _lower_median(work: np.ndarray) -> np.ndarray:
    """Per step (steps, 1): of an even number of ranks the faster one of the middle two."""
    middle = (work.shape[1] - 1) // 2
    return np.partition(work, middle, axis=1)[:, middle : middle + 1]


def slow_ranks(team: Team) -> list[Change]:
    """Changes of the ranks that others wait for most: as fast as their median peer in the state in which they are slow."""
    if len(team.ranks) < 2:
        return []
    work = team.work
    two = np.partition(work, -2, axis=1)[:, -2:]
    caused = np.bincount(
        work.argmax(axis=1), weights=(two[:, 1] - two[:, 0]) * team.counts, minlength=len(team.ranks)
    )
    most = [int(at) for at in np.argsort(-caused, kind="stable")[:CANDIDATES] if caused[at] > 0]
    return [change for at in most if (change := _slow_rank(team, at)) is not None]


def _peers(team: Team, at: int) -> np.ndarray:
    """Columns of the ranks that have the same work."""
    others = np.arange(len(team.ranks)) != at
    if team.stages:
        others &= np.array(team.stages) == team.stages[at]
    return np.flatnonzero(others)


def _slow_rank(team: Team, at: int) -> Change | None:
    peers = _peers(team, at)
    if not len(peers):
        return None
    means = team.own.mean(axis=0)
    excess = means[at] - np.median(means[peers], axis=0)
    if excess.sum() <= 0 or not is_larger(team.work[:, [at, *peers]], 0):
        return None  # A rank that is slow by chance is none that can be mended.
    worst = int(excess.argmax())
    only = worst if excess[worst] >= STATE_SHARE_MIN * excess[excess > 0].sum() else None
    rank, host = team.ranks[at], team.hosts[at]

    def lengths(other: Team) -> np.ndarray | None:
        if (rank, host) not in zip(other.ranks, other.hosts, strict=True):
            return None
        column = other.ranks.index(rank)
        times = other.work if only is None else other.own[:, :, only]
        work = other.work.copy()
        work[:, column] += replay.as_the_median(times, column, _peers(other, column)) - times[:, column]
        return replay.lengths(other, work)

    whose = f"rank {rank}" if only is None else f"rank {rank}'s {_OF_RANK[OWN[only]]}"
    verb = "as fast as the median"
    return Change("rank", f"{whose} {verb}", lengths, None if only is None else OWN[only], rank, host)


def is_larger(columns: np.ndarray, at: int) -> bool:
    """Whether a column (steps, columns) is larger than the median of the others in the mean, beyond chance.

    Beside columns of the same steps, so that what all of them have in common, such as drift, does not matter. The column
    may have been chosen as the largest: the chance of 5 % is for all of them.
    """
    if len(columns) < 2:
        return False
    others = np.delete(np.arange(columns.shape[1]), at)
    others = others[np.argsort(columns[:, others].mean(axis=0))]
    middle = others[(len(others) - 1) // 2 : len(others) // 2 + 1]
    apart = mean_of(columns[:, at] - columns[:, middle].mean(axis=1))
    chance = (1 - CONFIDENCE) / 2 / columns.shape[1]
    return apart.value > t_quantile(1 - chance, apart.freedom) * apart.variance**0.5


def slow_stage(team: Team) -> Change | None:
    """The slowest stage of a pipeline as fast as the median of the others."""
    if not team.stages:
        return None
    ratios, stages = _stage_ratios(team), np.array(team.stages)
    slowest = min(ratios, key=lambda stage: ratios[stage])
    works = np.stack([team.work[:, stages == stage].mean(axis=1) for stage in ratios], axis=1)
    if ratios[slowest] == 1 or not is_larger(works, list(ratios).index(slowest)):
        return None

    def lengths(other: Team) -> np.ndarray | None:
        if other.stages != team.stages:
            return None
        is_slowest = np.array(other.stages) == slowest
        return replay.lengths(
            other, np.where(is_slowest, other.work * _stage_ratios(other)[slowest], other.work)
        )

    return Change("stage", f"stage {slowest} as fast as the median", lengths, "straggler")


def _stage_ratios(team: Team) -> dict[int, float]:
    """The median of the other stages' mean work to that of each stage, at most 1; without a pipeline 1 for the team."""
    stages = np.array(team.stages or (0,) * len(team.ranks))
    usual = {int(stage): float(team.work[:, stages == stage].mean()) for stage in np.unique(stages)}
    ratios = {}
    for stage, own in usual.items():
        others = [ns for other, ns in usual.items() if other != stage]
        ratios[stage] = min(float(np.median(others)) / own, 1.0) if others and own > 0 else 1.0
    return ratios


def without_node(team: Team, host: str) -> np.ndarray:
    """Steps (ns) of the ranks on other nodes alone, each with the work that it has."""
    kept = np.array([one != host for one in team.hosts])
    return team.work[:, kept].max(axis=1) + replay.exchange(team)


# Steps that are added up to see whether a loader works while its rank does; workers deliver in turn.
AHEAD_STEPS = 8
AHEAD_WAIT_SHARE_MIN = 0.01
AHEAD_ERRORS_MIN = 4.0


def reads_ahead(team: Team) -> bool:
    """Whether a rank waits for a loader that works while the rank does: the longer its other work, the less it waits.

    Such a loader is the limit already, so other work that becomes faster makes its rank wait longer for it. Judged is the
    slope of waits over other own times of the same steps, which is -1 for such a loader and 0 for one that makes a batch
    on request: below -0.5 by AHEAD_ERRORS_MIN standard errors from 0.
    """
    count = len(team) // AHEAD_STEPS
    if count < 4:
        return False
    waits, all_own = (
        one[: count * AHEAD_STEPS].reshape(count, AHEAD_STEPS, -1).sum(axis=1)
        for one in (team.state("loader"), team.own.sum(axis=2))
    )
    work = all_own - waits
    length = replay.recorded(team).mean() * AHEAD_STEPS
    waits_mean = waits.mean(axis=0)
    x, y = work - work.mean(axis=0), waits - waits_mean
    spread = np.maximum((x**2).sum(axis=0), 1.0)
    slope = (x * y).sum(axis=0) / spread
    error = np.sqrt(((y - slope * x) ** 2).sum(axis=0) / (count - 2) / spread)
    found = (slope < -0.5) & (slope < -AHEAD_ERRORS_MIN * error)
    return bool((found & (waits_mean >= AHEAD_WAIT_SHARE_MIN * length)).any())
