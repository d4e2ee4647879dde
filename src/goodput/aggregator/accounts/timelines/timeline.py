"""A run over time: GPU-seconds by state per bucket, and the ranks whose own step time stands out.

The core folds the ledger's rows, and the time of each is spread over the buckets, so the buckets of a run sum to its
account and the states of a bucket to its GPU time, to the nanosecond. Runs in a thread of History; a row costs some
5 us. Of a run with more than ROWS_MAX rows a sample is read: the ranks that deviate, each for itself, and evenly spaced
others that are scaled to represent the rest; where even that is too much, only the rows at the buckets' edges, so that
stalls in between are missed. `sampled` reports this. A window depends on earlier rows, too (stall thresholds, first
steps): about ROWS_BEFORE_MAX of them are read, and the ones before these count as one long step of each rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import add
from statistics import quantiles
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from goodput.account.attempts import Attempt
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Facts, Span, gaps
from goodput.account.states import INDEX, STATES, share
from goodput.aggregator.accounts.past import Check, Past, Window, never
from goodput.aggregator.accounts.timelines.grid import Grid, cells_of, own_times
from goodput.aggregator.accounts.timelines.reading import fold_at, fold_from
from goodput.aggregator.accounts.timelines.spans import BEGIN, COLUMN, END, Spans, SpanTable
from goodput.aggregator.ledger.ledger import Ledger

POINTS_MAX = 240
COLUMNS_MAX = 60
RANKS_SHOWN = 64
ROWS_MAX, ROWS_BEFORE_MAX = 100_000, 25_000
# The least number of representative ranks; with fewer, one rank would weigh too much.
SPREAD_MIN = 16
STALLS_SHOWN = 50
_UNOBSERVED = INDEX["unobserved"]


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


class Own(NamedTuple):
    """A rank's own ns (steps without waiting for others) and steps, by column, in proportion to their overlap."""

    ns: Sequence[float]
    steps: Sequence[float]


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


class _Owner(NamedTuple):
    """The owner of spans: whether it represents others, its number of devices, and its place among the ranks read."""

    is_spread: bool
    devices: int
    place: int = 0


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
    chosen = _chosen(past, facts, worst)
    ranks = sorted(chosen.alone | chosen.spread)
    whole = facts if window[0] is None else past.facts((None, window[1]))
    engine = _engine(past, whole, ranks)
    spans = Spans(engine)
    if chosen.all_rows:
        fold_from(ledger, engine, _begin_ns(engine, facts.start_ns), check)
    else:
        fold_at(ledger, engine, grid.edges, check)
    sums = engine.sums()
    devices = _devices(past, facts)
    place = {rank: at for at, rank in enumerate(ranks)}
    owners = [_Owner(rank in chosen.spread, devices[rank], place[rank]) for rank, _ in engine.places]
    seen = {rank for rank in facts.by_rank if facts.expected.spans_of(rank)}
    for rank, count, _ in facts.expected.apart(seen):
        if rank not in seen or rank in engine.facts.by_rank:
            for start, end, state, _ in gaps(facts, rank):
                spans.add(len(owners), start, end, {STATES[state]: end - start})
            owners.append(_Owner(rank in chosen.spread, devices.get(rank, devices[None]) * count))
    found = TimelineSums(facts, grid, _allocated(facts, grid, devices), [], {}, [])
    _spread(spans.finish(sums), owners, ranks, found)
    of, unseen = len(facts.expected), len(facts.expected) - len(seen)
    if not chosen.all_rows or len(ranks) < len(seen):
        found.sampled = Sampled(len(ranks) + unseen, of, chosen.all_rows)
    return found


def _engine(past: Past, facts: Facts, ranks: Sequence[int]) -> CoreEngine:
    by_rank = {rank: facts.by_rank[rank] for rank in ranks}
    attempts = {(one.rank, one.attempt): one for own in by_rank.values() for one in own}
    run = replace(past.run, attempts=attempts)
    return CoreEngine(run, replace(facts, by_rank=by_rank), past.stall_seconds)


def _begin_ns(engine: CoreEngine, start_ns: int) -> int:
    """Where reading begins: early enough for about ROWS_BEFORE_MAX rows before the window, or at the run's start."""
    attempts = engine.run.attempts.values()
    first_ns = min((one.start_ns for one in attempts), default=start_ns)
    before_ns = max(start_ns - first_ns, 0)
    rows = sum(_rows_between(engine.facts, one, first_ns, start_ns) for one in attempts)
    return start_ns - before_ns * ROWS_BEFORE_MAX // max(rows, ROWS_BEFORE_MAX)


def _rows_between(facts: Facts, attempt: Attempt, from_ns: int, to_ns: int) -> int:
    """About how many rows of an attempt lie in a part of its life."""
    end_ns = facts.bounds[attempt.rank, attempt.attempt].end_ns
    part_ns = min(end_ns, to_ns) - max(attempt.start_ns, from_ns)
    return attempt.top_number * max(part_ns, 0) // max(end_ns - attempt.start_ns, 1)


def _spread(spans: SpanTable, owners: Sequence[_Owner], ranks: Sequence[int], into: TimelineSums) -> None:
    is_spread, weights, places = zip(*owners, strict=True) if owners else ((), (), ())
    grid, start_ns, end_ns = into.grid, into.facts.start_ns, into.facts.end_ns
    both = cells_of(spans.values, grid, np.array(is_spread, int), np.array(weights, object))
    into.cells = list(map(_closed, *both, into.gpu_ns))
    columns = Grid(start_ns, end_ns, -(-grid.points // -(-grid.points // COLUMNS_MAX)))
    own = own_times(spans, columns, np.array(places, int), len(ranks))
    into.own = {rank: Own(*times) for rank, *times in zip(ranks, *own, strict=True)}
    is_stall = (spans.values[:, COLUMN["stall"]] > 0) & (spans.values[:, END] > start_ns)
    stalls = spans.values[is_stall, BEGIN : END + 1].clip(start_ns).tolist()
    into.stalls = merged([(begin, end) for begin, end in stalls])


def _chosen(past: Past, facts: Facts, worst: Sequence[int]) -> _Choice:
    """All ranks if they have at most ROWS_MAX rows, else `worst` and evenly spread others."""
    rows = {rank: 0 for rank in facts.by_rank if facts.expected.spans_of(rank)}
    for key, attempt in past.run.attempts.items():
        if attempt.rank in rows:
            bound = facts.bounds[key]
            rows[attempt.rank] += _rows_between(facts, attempt, bound.from_ns, bound.to_ns)
    if sum(rows.values()) <= ROWS_MAX:
        return _Choice(set(rows), set())
    alone = {rank for rank in worst if rank in rows}
    others = sorted(rows.keys() - alone)
    each = max(max(rows.values()), 1)
    fits = ROWS_MAX // each
    many = min(max(fits - len(alone), SPREAD_MIN), 2 * RANKS_SHOWN, len(others))
    spread = {others[i * len(others) // many] for i in range(many)} if many else set()
    return _Choice(alone, spread, (len(alone) + many) * each <= 2 * ROWS_MAX)


def _devices(past: Past, facts: Facts) -> dict[int | None, int]:
    """By rank; under None those of an unreported one, which is taken to have as many as the others."""
    most = max((attempt.devices for attempt in past.run.attempts.values()), default=1)
    return {None: most, **{rank: own[-1].devices for rank, own in facts.by_rank.items()}}


def _allocated(facts: Facts, grid: Grid, devices: dict[int | None, int]) -> list[int]:
    """GPU-ns of all expected ranks, by bucket."""
    alike: Counter[Span] = Counter()
    for rank, count, spans in facts.expected.apart(facts.by_rank):
        for span in spans:
            alike[span] += devices.get(rank, devices[None]) * count
    begin, end = np.array(list(alike), np.int64).reshape(-1, 2).T
    return grid.sums(begin, end, np.array(list(alike.values()), object))


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
