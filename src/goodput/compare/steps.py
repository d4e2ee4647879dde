"""The steps of a run as a table: time by state, added up over ranks, without what is no ordinary step.

A step here lasts from the end of the step before to its own end, so checkpoints and evaluations between steps belong to
it, and the states of all steps add up to the time of the ranks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from goodput.account import Attempt
from goodput.account.account import peak_of
from goodput.account.states import STATES
from goodput.compare.selection import SINCE_START, STEP, Window
from goodput.defaults import STALL_SECONDS
from goodput.estimates.mean import mean_of
from goodput.runlog import LogError
from goodput.runlog.replay import Step, read_steps, replay
from goodput.runlog.scan_results import Problems

STEPS_MIN = 20
COUNT_MAX = 100_000  # steps that one line may stand for
_COLUMNS = ("numbers", "states", "ranks", "samples", "ends")
_LEADING = 6  # columns before those of the states
WARM_UP_SHARE_MAX = 0.25
APART = 4.0  # standard errors by which a beginning differs


class Whole(NamedTuple):
    """Figures of the account of a run, or of a window of it: None where unknown."""

    goodput: float | None
    mfu: float | None
    gpu_seconds: float


@dataclass
class Steps:
    """A run, or a window of one. Row i of `states` has the ns by state of `ranks[i]` ranks in step `numbers[i]`, which
    is in order, and which the last of them ended at `ends[i]` (unix ns)."""

    name: str
    numbers: np.ndarray
    states: np.ndarray
    ranks: np.ndarray
    samples: np.ndarray
    ends: np.ndarray
    first: list[int] = field(default_factory=list)  # the first step of each attempt, left out
    warm_up: int = 0  # so many of the rows are of another pace than the rest
    gpus: int = 0
    devices: tuple[str, ...] = ()
    gpu_hour_cost: float | None = None
    flops_per_step: float | None = None  # of all ranks together, as is the peak
    peak_flops_per_second: float | None = None
    whole: Whole | None = None
    has_start: bool = True  # its first step is the run's, so that a warm-up is left out
    whole_from: int | None = None  # its steps before this one were thinned and are left out
    path: str = ""
    problems: Problems = field(default_factory=Problems)  # of the log

    def __len__(self) -> int:
        return len(self.numbers)

    def without(self, count: int) -> Steps:
        """Without the first `count` steps, if they are those of the run."""
        return replace(self.rows(np.arange(count, len(self))), warm_up=count) if self.has_start else self

    def rows(self, at: np.ndarray) -> Steps:
        """The rows at these indices."""
        return replace(self, **{name: getattr(self, name)[at] for name in _COLUMNS})

    @property
    def lengths(self) -> np.ndarray:
        """Mean length of each step over its ranks, in ns."""
        return self.states.sum(axis=1) / self.ranks


def read(
    path: str,
    run: str | None = None,
    window: Window | None = None,
    *,
    thinned_until_ns: Mapping[int, int] | None = None,
    stall_seconds: float = STALL_SECONDS,
    progress: Callable[[float], None] = lambda _: None,
) -> Steps:
    """The only run of a log, or the one that is named, or a window of it. Raises LogError if there are too few steps.

    Of a rank's lines up to its time in `thinned_until_ns` those that stand for several steps were thinned: steps up to the last
    of them are left out. Then, and of standard input, which can be read once, the figures of the whole run are unknown. Those have
    stalls from `stall_seconds` on.
    """
    share = 1.0 if path == "-" else 0.5
    by_rank: dict[int, _Rows] = {}
    names: dict[str, None] = {}
    problems: list[Problems] = []
    thinned = thinned_until_ns or {}
    for step in read_steps(path, progress=lambda at: progress(share * at), take_problems=problems.append):
        names[step.run] = None
        if run in (None, step.run):
            if step.attempt.rank not in by_rank:
                by_rank[step.attempt.rank] = _Rows()
            is_thinned = step.count > 1 and step.end_ns <= thinned.get(step.attempt.rank, 0)
            by_rank[step.attempt.rank].add(step, is_thinned)
    if run is not None and run not in names:
        raise LogError(
            f"{path}: no steps of a run {run!r}; there are those of {', '.join(map(repr, names)) or 'none'}"
        )
    if run is None and len(names) > 1:
        raise LogError(f"{path}: {len(names)} runs ({', '.join(sorted(names)[:5])}); name one as {path}#RUN")
    name = run or next(iter(names), "")
    found = _table(name, by_rank)
    found.path, found.problems = path, problems[0]
    attempts = [one for rows in by_rank.values() for one in rows.attempts.values()]
    _describe(found, attempts)
    bounds = None
    if window is not None or found.whole_from is not None:
        window = window or Window(STEP, None, None, f"{found.whole_from}..")
        found, bounds = _within(found, window, min((one.start_ns for one in attempts), default=0))
    if len(found) < STEPS_MIN:
        within = f" in {window.text}" if window else ""
        what, why = path, _why_few(found.problems)
        if found.whole_from is not None:
            what, why = f"run {name!r}", f"; steps before {found.whole_from:,} were thinned{why}"
        raise LogError(
            f"{what}: {len(found)} steps that can be compared{within}, at least {STEPS_MIN} are needed{why}"
        )
    if found.has_start:
        found.warm_up = warm_up(found.lengths)
    # A stall threshold from thinned lines would be too high.
    if path != "-" and not thinned:
        found.whole = _whole(path, name, bounds, stall_seconds, lambda at: progress(0.5 + 0.5 * at))
    return found


def _why_few(problems: Problems) -> str:
    """The step lines that cannot be used, if there are any."""
    lost = problems.step_quality()
    return (
        ""
        if lost is None
        else f"; {lost['unusable']} of {lost['read']} step lines cannot be used, {lost['first']}"
    )


def _within(found: Steps, window: Window, start_ns: int) -> tuple[Steps, tuple[int | None, int | None]]:
    """The steps of the window that were not thinned, and its time; of step numbers that from the end of the step before to the
    last one's. `whole_from` stays where it leaves out a part of the window."""
    if window.unit == STEP:
        place, offset = found.numbers, 0
    else:
        place, offset = found.ends, start_ns if window.unit == SINCE_START else 0
    low, high = (None if bound is None else bound + offset for bound in (window.start, window.end))
    inside = np.ones(len(found), bool)
    inside &= True if low is None else place >= low
    inside &= True if high is None else place < high
    is_whole = inside & (True if found.whole_from is None else found.numbers >= found.whole_from)
    at = np.flatnonzero(is_whole)
    part = found.rows(at)
    part.whole_from = found.whole_from if (inside & ~is_whole).any() else None
    if not len(at):
        return part, (start_ns, start_ns)
    part.name, part.has_start = f"{found.name} @{window.text}", bool(at[0] == 0)
    earliest = 0 if part.has_start else part.numbers[0]
    part.first = [one for one in found.first if earliest <= one <= part.numbers[-1]]
    if window.unit != STEP:
        return part, (low, high)
    begin_ns = start_ns if part.has_start else int(found.ends[at[0] - 1])
    return part, (begin_ns, int(part.ends.max()))


def _whole(
    path: str,
    run: str,
    bounds: tuple[int | None, int | None] | None,
    stall_seconds: float,
    progress: Callable[[float], None],
) -> Whole | None:
    for one in replay(path, stall_seconds=stall_seconds, window=bounds, progress=progress):
        if one.account.run == run:
            account = one.account
            return Whole(account.ratio("goodput"), account.ratio("mfu"), account.wall_gpu_ns() / 1e9)
    return None


class _Rows:
    """One rank's steps; a step that a later attempt repeats counts as that one did it."""

    def __init__(self):
        self.attempts: dict[int, Attempt] = {}
        self.values = array("q")

    def add(self, step: Step, is_thinned: bool) -> None:
        count = min(step.count, COUNT_MAX)
        first, total = step.step - count + 1, sum(step.states)
        for n in range(count):
            states = [ns * (n + 1) // count - ns * n // count for ns in step.states]
            samples = step.samples * (n + 1) // count - step.samples * n // count
            is_first = step.attempt.attempt not in self.attempts
            self.attempts[step.attempt.attempt] = step.attempt
            end_ns = step.end_ns - total * (count - 1 - n) // count
            leading = first + n, step.attempt.attempt, is_first, samples, end_ns, is_thinned
            self.values.extend((*leading, *states))

    def table(self) -> np.ndarray:
        """Columns: step, whether it is an attempt's first, samples, end, whether it was thinned, ns by state; one row for each
        step."""
        rows = np.frombuffer(self.values, dtype=np.int64).reshape(-1, _LEADING + len(STATES))
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        is_last = np.append(rows[1:, 0] != rows[:-1, 0], True)
        return np.delete(rows[is_last], 1, axis=1)


def _table(name: str, by_rank: dict[int, _Rows]) -> Steps:
    rows = [one.table() for one in by_rank.values()]
    together = np.concatenate(rows) if rows else np.zeros((0, _LEADING - 1 + len(STATES)), np.int64)
    numbers, place = np.unique(together[:, 0], return_inverse=True)
    sums = np.zeros((len(numbers), 3 + len(STATES)), np.int64)
    np.add.at(sums, place, np.delete(together[:, 1:], 2, axis=1))
    ends = np.full(len(numbers), np.iinfo(np.int64).min)
    np.maximum.at(ends, place, together[:, 3])
    ranks = np.bincount(place, minlength=len(numbers))
    is_first = sums[:, 0] > 0
    kept, thinned = ~is_first, numbers[sums[:, 2] > 0]
    return Steps(
        *(name, numbers[kept], sums[kept, 3:], ranks[kept], sums[kept, 1], ends[kept]),
        numbers[is_first].tolist(),
        whole_from=int(thinned[-1]) + 1 if len(thinned) else None,
    )


def _describe(found: Steps, attempts: list[Attempt]) -> None:
    newest = {one.rank: one for one in attempts}
    found.gpus = sum(one.devices for one in newest.values())
    found.devices = tuple(sorted({one.device for one in attempts if one.device}))
    costs = {one.gpu_hour_cost for one in attempts}
    found.gpu_hour_cost = costs.pop() if len(costs) == 1 else None
    found.flops_per_step = _sum(one.flops_per_step for one in newest.values())
    found.peak_flops_per_second = _sum(map(peak_of, newest.values()))


def _sum(values: Iterable[float | None]) -> float | None:
    """None if one of them is unknown."""
    listed = list(values)
    return None if None in listed else sum(one for one in listed if one is not None)


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
