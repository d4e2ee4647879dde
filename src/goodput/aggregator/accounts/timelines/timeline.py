"""A run over time: GPU-seconds by state per bucket, and the ranks whose own step time stands out.

One pass over the ledger's rows folds every step as the account does and spreads what it became over the buckets, so the
buckets of a run sum to its account and the states of a bucket to its GPU time, to the nanosecond. Runs in a thread of
History; a row costs some 10 us. Of a run with more than ROWS_MAX rows a sample is read: the ranks that
deviate, each for itself, and evenly spaced others that are scaled to represent the rest; where even that is too much,
only the rows at the buckets' edges, so that stalls in between are missed. `sampled` reports this.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import add
from statistics import quantiles
from typing import NamedTuple, cast

from msgspec import Struct

from goodput.account.facts import Facts, Key, gaps
from goodput.account.fold import Fold
from goodput.account.states import INDEX, PRODUCTIVE, STATES, share, vector
from goodput.aggregator.accounts.past import (
    Arrays,
    Check,
    Past,
    Window,
    never,
    readers,
    rows_of_bound,
    together,
)
from goodput.aggregator.accounts.timelines.timed_columns import TimedGroups
from goodput.aggregator.accounts.timelines.timed_fold import BucketSums, Grid, Own, Span, TimedFold
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.stored_process import StoredProcess
from goodput.columns.engine import ColumnEngine
from goodput.columns.fold import fold_columns
from goodput.wire.step_blocks import NUMBER

POINTS_MAX = 240
COLUMNS_MAX = 60
RANKS_SHOWN = 64
ROWS_MAX = 100_000
# The least number of representative ranks; with fewer, one rank would weigh too much.
SPREAD_MIN = 16
_STRAGGLER, _BUBBLE = INDEX["straggler"], INDEX["bubble"]
_LAUNCH, _UNOBSERVED = INDEX["launch"], INDEX["unobserved"]
STALLS_SHOWN = 50


class Bucket(Struct):
    """A part of a run's time: GPU-seconds of the states that occur, which sum to `gpu_seconds`."""

    start: float
    end: float
    gpu_seconds: float
    states: dict[str, float]


class Sampled(Struct):
    """`ranks` of `of` were read and represent all; without `all_steps` only rows at the buckets' edges were."""

    ranks: int
    of: int
    all_steps: bool


class HeatRank(Struct):
    rank: int
    own_seconds: list[float | None]
    host: str = ""


class HeatOthers(Struct):
    """Quantiles per column over the ranks that are not shown individually."""

    ranks: int
    p10: list[float | None]
    p50: list[float | None]
    p90: list[float | None]
    p100: list[float | None]


class Heat(Struct):
    """Own seconds per kept step, without waiting for other ranks, in `columns` equal parts from `start` to `end`.

    In lock step all steps take the same time; only own time shows which rank is slow. Null where a rank did no step.
    `ranks` are those that deviate most, `median` is over all that were read.
    """

    start: float
    end: float
    columns: int
    median: list[float | None]
    ranks: list[HeatRank]
    others: HeatOthers | None


class Mark(Struct):
    """A restart, a committed checkpoint (the last of its bucket) or a stall, which alone has an `end`.

    `step` is that of the checkpoint, or the one a restart resumes from.
    """

    kind: str
    time: float
    end: float | None = None
    step: int | None = None
    attempt: int | None = None


class Timeline(Struct):
    """A run over time, in equal buckets. `sampled` is null where every row was read."""

    run: str
    status: str
    start: float
    end: float
    buckets: list[Bucket]
    marks: list[Mark]
    sampled: Sampled | None
    heat: Heat | None


@dataclass
class TimelineSums:
    """`cells` is GPU-ns by bucket and state, `gpu_ns` what each bucket's sum to; `own` is by rank."""

    facts: Facts
    grid: Grid
    gpu_ns: list[int]
    cells: list[list[int]]
    own: dict[int, Own]
    stalls: list[Span]
    sampled: Sampled | None = None


class _Choice(NamedTuple):
    """The ranks that are read: individually (`alone`) or to represent others (`spread`)."""

    alone: set[int]
    spread: set[int]
    all_rows: bool = True


def timeline_of(
    ledger: Ledger, past: Past, window: Window, points: int, worst: Sequence[int], check: Check = never
) -> Timeline:
    """The timeline of a window in `points` buckets, with stalls as its only marks; `worst` are the ranks that deviate."""
    found = sums_of(ledger, past, window, points, worst, check)
    edges = [ns / 1e9 for ns in found.grid.edges] or [found.facts.start_ns / 1e9]
    buckets = []
    for (start, end), gpu_ns, cell in zip(pairwise(edges), found.gpu_ns, found.cells, strict=True):
        states = {state: ns / 1e9 for state, ns in zip(STATES, cell, strict=True) if ns}
        buckets.append(Bucket(start, end, gpu_ns / 1e9, states))
    heat = heat_of(found.own, worst, edges[0], edges[-1])
    for row in heat.ranks if heat else ():
        row.host = found.facts.by_rank[row.rank][-1].host
    return Timeline(
        *(past.run.name, found.facts.status, edges[0], edges[-1], buckets),
        marks=[Mark("stall", start / 1e9, end / 1e9) for start, end in found.stalls],
        sampled=found.sampled,
        heat=heat,
    )


def sums_of(
    ledger: Ledger, past: Past, window: Window, points: int, worst: Sequence[int], check: Check = never
) -> TimelineSums:
    facts = past.facts(window)
    grid = Grid(facts.start_ns, facts.end_ns, points)
    if not grid.points:
        return TimelineSums(facts, grid, [], [], {}, [])
    alone, spread, all_rows = _chosen(past, facts, worst)
    ranks = alone | spread
    per_column = -(-grid.points // COLUMNS_MAX)
    columns = Grid(facts.start_ns, facts.end_ns, -(-grid.points // per_column))
    stalls: list[Span] = []
    own = {rank: Own.empty(columns.points) for rank in ranks}
    sums = [BucketSums(grid), BucketSums(grid)]  # of the ranks alone and spread
    devices = _devices(past, facts)
    chosen = {key: attempt for key, attempt in past.run.attempts.items() if key[0] in ranks}
    engine = ColumnEngine(
        replace(past.run, attempts=chosen), facts, past.planned.copy(), TimedGroups, TimedFold
    )
    folds = cast("dict[Key, TimedFold]", engine.folds)
    for (rank, _), fold in folds.items():
        fold.sums, fold.devices = sums[rank in spread], devices[rank]
        fold.columns, fold.own, fold.stalls = columns, own[rank], stalls
        if fold.attempt.hardware.get("compute_ns") and fold.attempt.hardware.get("idle_ns"):
            fold.compute = array("q", bytes(8 * grid.points))
    rows = rows_of_bound if all_rows else partial(_rows_at, edges=grid.edges)
    for parts in together(readers(engine, ledger, rows, page_rows=0 if all_rows else 1), check):
        fold_columns(engine, parts)
    engine.settle()
    cast("TimedGroups", engine.groups).move_waiting()
    for fold in folds.values():
        _launch(fold)
    seen = {rank for rank in facts.by_rank if facts.expected.spans_of(rank)}
    for rank, count, _ in facts.expected.apart(seen):
        if rank in ranks or rank not in seen:
            for start, end, state, _ in gaps(facts, rank):
                states = vector()
                states[state] = end - start
                sums[rank in spread].add_span(states, start, end, devices.get(rank, devices[None]) * count)
    gpu_ns = _allocated(facts, grid, devices)
    cells = list(map(_closed, sums[0].cells, sums[1].cells, gpu_ns))
    of, unseen = len(facts.expected), len(facts.expected) - len(seen)
    whole = all_rows and len(ranks) == len(seen)
    sampled = None if whole else Sampled(len(ranks) + unseen, of, all_rows)
    return TimelineSums(facts, grid, gpu_ns, cells, own, merged(stalls), sampled)


def _chosen(past: Past, facts: Facts, worst: Sequence[int]) -> _Choice:
    """All ranks if they have at most ROWS_MAX rows, else `worst` and evenly spread others."""
    rows = {rank: 0 for rank in facts.by_rank if facts.expected.spans_of(rank)}
    for (rank, _), attempt in past.run.attempts.items():
        bound = facts.bounds[rank, attempt.attempt]
        life = max(bound.end_ns - attempt.start_ns, 1)
        if rank in rows:
            rows[rank] += attempt.top_number * (bound.to_ns - bound.from_ns) // life
    if sum(rows.values()) <= ROWS_MAX:
        return _Choice(set(rows), set())
    alone = {rank for rank in worst if rank in rows}
    others = sorted(rows.keys() - alone)
    each = max(max(rows.values()), 1)
    fits = ROWS_MAX // each
    many = min(max(fits - len(alone), SPREAD_MIN), 2 * RANKS_SHOWN, len(others))
    spread = {others[i * len(others) // many] for i in range(many)} if many else set()
    return _Choice(alone, spread, (len(alone) + many) * each <= 2 * ROWS_MAX)


def _rows_at(
    ledger: Ledger, process: StoredProcess, fold: Fold, pages: Arrays, *, edges: list[int]
) -> Arrays:
    """An attempt's first row, rows that touch an edge, and its last ones."""
    page = next(rows_of_bound(ledger, process, fold, pages), None)
    if page is None:
        return
    first, bound = page[:, :1].copy(), fold.bound
    # Readers of many ranks wait at these lines: what they hold counts as often.
    del page, pages
    yield first
    places = [ns for ns in edges if bound.from_ns < ns < bound.to_ns]
    places.append(min(bound.to_ns, fold.attempt.rows_end_ns))
    yield ledger.rows_at(process, sorted(places), after=int(first[NUMBER, 0]))


def _launch(fold: TimedFold) -> None:
    """As hardware.states_of does for an attempt's sums: the same share of compute is `launch` everywhere."""
    if fold.compute is None:
        return
    covered = fold.attempt.hardware["compute_ns"]
    idle, most = min(fold.attempt.hardware["idle_ns"], covered), max(covered, fold.compute_ns)
    for cell, ns in zip(fold.sums.cells, fold.compute, strict=True):
        moved = ns * idle // most * fold.devices
        cell[PRODUCTIVE] -= moved
        cell[_LAUNCH] += moved


def _devices(past: Past, facts: Facts) -> dict[int | None, int]:
    """By rank; under None those of an unreported one, which is taken to have as many as the others."""
    most = max((attempt.devices for attempt in past.run.attempts.values()), default=1)
    return {None: most, **{rank: own[-1].devices for rank, own in facts.by_rank.items()}}


def _allocated(facts: Facts, grid: Grid, devices: dict[int | None, int]) -> list[int]:
    """GPU-ns of all expected ranks, by bucket."""
    found = [0] * grid.points
    alike: Counter[Span] = Counter()
    for rank, count, spans in facts.expected.apart(facts.by_rank):
        for span in spans:
            alike[span] += devices.get(rank, devices[None]) * count
    for span, count in alike.items():
        for bucket, ns in grid.parts(*span):
            found[bucket] += ns * count
    return found


def _closed(alone: list[int], spread: list[int], whole: int) -> list[int]:
    """One bucket's states, which sum to `whole`: those of representative ranks are scaled to the remainder."""
    left = whole - sum(alone)
    if sum(spread) != left:
        spread = share(spread, left, sum(spread)) if sum(spread) > 0 else spread
    states = list(map(add, alone, spread))
    # What is left is unobserved. Rounding may make it negative by some nanoseconds.
    states[_UNOBSERVED] += whole - sum(states)
    for i, ns in enumerate(states):
        if ns < 0:
            states[i] = 0
            states[states.index(max(states))] += ns
    return states


def heat_of(own: dict[int, Own], worst: Sequence[int], start: float, end: float) -> Heat | None:
    """Own seconds per step by rank and column: the worst ranks individually, the others as quantiles.

    At most RANKS_SHOWN ranks, so the document is bounded whatever the size of the run.
    """
    seconds = {
        rank: [ns / steps / 1e9 if steps else None for ns, steps in zip(one.ns, one.steps, strict=True)]
        for rank, one in own.items()
        if any(one.steps)
    }
    if not seconds:
        return None
    columns = len(next(iter(seconds.values())))
    shown = sorted(seconds) if len(seconds) <= RANKS_SHOWN else [rank for rank in worst if rank in seconds]
    shown = shown[:RANKS_SHOWN]
    others = [values for rank, values in seconds.items() if rank not in set(shown)]

    def quantile(rows, percent: int) -> list[float | None]:
        return _rounded([_quantile(rows, i, percent) for i in range(columns)])

    return Heat(
        start,
        end,
        columns,
        median=quantile(seconds.values(), 50),
        ranks=[HeatRank(rank, _rounded(seconds[rank])) for rank in shown],
        others=HeatOthers(len(others), *(quantile(others, p) for p in (10, 50, 90, 100))) if others else None,
    )


def _quantile(rows, column: int, percent: int) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    if len(values) < 2 or percent == 100:
        return max(values, default=None)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _rounded(values: list[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{value:.5g}") for value in values]


def merged(spans: list[Span]) -> list[Span]:
    """The STALLS_SHOWN longest unions of these spans, in order of time."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return sorted(sorted(found, key=lambda span: span[0] - span[1])[:STALLS_SHOWN])
