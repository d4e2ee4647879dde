"""The steps of a run as a table: time by state, added up over ranks, without what is no ordinary step.

A step here lasts from the end of the step before to its own end, so checkpoints and evaluations between steps belong to
it, and the states of all steps add up to the time of the ranks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from goodput.account import Attempt
from goodput.account.states import STATES
from goodput.estimates.mean import mean_of
from goodput.runlog import LogError
from goodput.runlog.replay import Step, read_steps

STEPS_MIN = 20
COUNT_MAX = 100_000  # steps that one line may stand for
WARM_UP_SHARE_MAX = 0.25
APART = 4.0  # standard errors by which a beginning differs


@dataclass
class Steps:
    """A run. Row i of `states` has the ns by state of `ranks[i]` ranks in step `numbers[i]`, which is in order."""

    name: str
    numbers: np.ndarray
    states: np.ndarray
    ranks: np.ndarray
    samples: np.ndarray
    first: list[int] = field(default_factory=list)  # the first step of each attempt, left out
    warm_up: int = 0  # so many of the rows are of another pace than the rest
    gpus: int = 0
    devices: tuple[str, ...] = ()
    gpu_hour_cost: float | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def without(self, count: int) -> Steps:
        """Without the first `count` steps."""
        rest = {name: getattr(self, name)[count:] for name in ("numbers", "states", "ranks", "samples")}
        return replace(self, **rest, warm_up=count)

    @property
    def lengths(self) -> np.ndarray:
        """Mean length of each step over its ranks, in ns."""
        return self.states.sum(axis=1) / self.ranks


def read(path: str, run: str | None = None, progress: Callable[[float], None] = lambda _: None) -> Steps:
    """The only run of a log, or the one of this name. Raises LogError if there are too few steps."""
    by_rank: dict[int, _Rows] = {}
    names: dict[str, None] = {}
    for step in read_steps(path, progress=progress):
        names[step.run] = None
        if run in (None, step.run):
            if step.attempt.rank not in by_rank:
                by_rank[step.attempt.rank] = _Rows()
            by_rank[step.attempt.rank].add(step)
    if run is not None and run not in names:
        raise LogError(
            f"{path}: no steps of a run {run!r}; there are those of {', '.join(map(repr, names)) or 'none'}"
        )
    if run is None and len(names) > 1:
        raise LogError(f"{path}: {len(names)} runs ({', '.join(sorted(names)[:5])}); name one as {path}#RUN")
    found = _table(run or next(iter(names), ""), by_rank)
    _describe(found, [one for rows in by_rank.values() for one in rows.attempts.values()])
    if len(found) < STEPS_MIN:
        raise LogError(f"{path}: {len(found)} steps that can be compared, at least {STEPS_MIN} are needed")
    found.warm_up = warm_up(found.lengths)
    return found


class _Rows:
    """One rank's steps; a step that a later attempt repeats counts as that one did it."""

    def __init__(self):
        self.attempts: dict[int, Attempt] = {}
        self.values = array("q")

    def add(self, step: Step) -> None:
        count = min(step.count, COUNT_MAX)
        first = step.step - count + 1
        for n in range(count):
            states = [ns * (n + 1) // count - ns * n // count for ns in step.states]
            samples = step.samples * (n + 1) // count - step.samples * n // count
            is_first = step.attempt.attempt not in self.attempts
            self.attempts[step.attempt.attempt] = step.attempt
            self.values.extend((first + n, step.attempt.attempt, is_first, samples, *states))

    def table(self) -> np.ndarray:
        """Columns: step, whether it is an attempt's first, samples, ns by state; one row for each step."""
        rows = np.frombuffer(self.values, dtype=np.int64).reshape(-1, 4 + len(STATES))
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        is_last = np.append(rows[1:, 0] != rows[:-1, 0], True)
        return np.delete(rows[is_last], 1, axis=1)


def _table(name: str, by_rank: dict[int, _Rows]) -> Steps:
    rows = [one.table() for one in by_rank.values()]
    together = np.concatenate(rows) if rows else np.zeros((0, 3 + len(STATES)), np.int64)
    numbers, place = np.unique(together[:, 0], return_inverse=True)
    sums = np.zeros((len(numbers), together.shape[1] - 1), np.int64)
    np.add.at(sums, place, together[:, 1:])
    ranks = np.bincount(place, minlength=len(numbers))
    is_first = sums[:, 0] > 0
    kept = ~is_first
    return Steps(name, numbers[kept], sums[kept, 2:], ranks[kept], sums[kept, 1], numbers[is_first].tolist())


def _describe(found: Steps, attempts: list[Attempt]) -> None:
    newest = {one.rank: one for one in attempts}
    found.gpus = sum(one.devices for one in newest.values())
    found.devices = tuple(sorted({one.device for one in attempts if one.device}))
    costs = {one.gpu_hour_cost for one in attempts}
    found.gpu_hour_cost = costs.pop() if len(costs) == 1 else None


def warm_up(lengths: np.ndarray) -> int:
    """How many steps at the beginning to leave out: those without which the mean is known best (MSER).

    White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997; at most a
    quarter of the steps.
    """
    count = len(lengths)
    most = int(WARM_UP_SHARE_MAX * count)
    if most < 1:
        return 0
    # Sums from each step to the end, of differences from the mean of all for the sake of precision.
    centred = lengths - lengths.mean()
    sums, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    left = count - np.arange(most + 1)
    errors = (squares[: most + 1] - sums[: most + 1] ** 2 / left) / left**2
    found = int(np.argmin(errors))
    # Some beginning is always best; it is left out only if it differs.
    rest = mean_of(lengths[found:])
    apart = abs(lengths[:found].mean() - rest.value) if found else 0.0
    spread = rest.variance * (count - found) / max(found, 1) + rest.variance
    return found if apart > APART * spread**0.5 else 0
