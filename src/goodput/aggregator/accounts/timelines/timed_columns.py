"""Where steps lie in time, many at once: what timed_fold does for each step, with the same result to the nanosecond."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import add

import numpy as np

from goodput.account.facts import Key
from goodput.account.states import COMMUNICATION, INDEX, PRODUCTIVE, UNATTRIBUTED
from goodput.aggregator.accounts.timelines.timed_fold import BucketSums, Grid, TimedFold
from goodput.columns.groups import ColumnGroups, Compared, Entries, Times

_STRAGGLER, _BUBBLE = INDEX["straggler"], INDEX["bubble"]
RANKS_AT_ONCE = 128  # of which waiting is moved together
_HALF_BITS = 19
# Longer spans are left to Python's integers: `_part` would leave int64.
_SPAN_NS_MAX = 1 << 2 * _HALF_BITS


class TimedGroups(ColumnGroups):
    """Groups that also move waiting time to `straggler` and `bubble` in the buckets where it occurred (`move_waiting`)."""

    folds: Mapping[Key, TimedFold]

    def __init__(self, folds: Mapping[Key, TimedFold]):
        super().__init__(folds)
        # Parallel arrays: steps that were added, as places in _keys, step indices and ends; and waiting, by steps.
        self._added: list[tuple[np.ndarray, ...]] = []
        self._waits: list[tuple[np.ndarray, ...]] = []

    def add(self, key, step, count, compared, first=False):
        self._added.append(_columns((self._rank[key], step, self.folds[key].span[1])))
        super().add(key, step, count, compared, first)

    def take_times(self, keys: list[Key], times: Times, compared: Compared) -> None:
        """Lay these steps as TimedFold does for each."""
        folds, of, end = [self.folds[key] for key in keys], times.attempt, times.end
        begin, gap = end - compared.length, dict(times.gap)
        # Compute outside steps belongs to no kept step.
        gap[UNATTRIBUTED] = gap.get(UNATTRIBUTED, 0) + gap.pop(PRODUCTIVE, np.zeros_like(end))
        add_spans(folds, of, times.inside, begin, end)
        add_spans(folds, of, gap, times.began, begin)
        _add_own(folds, times, compared.own, begin)
        self._added.append((np.array([self._rank[key] for key in keys])[of], compared.step, end))

    def move_waiting(self) -> None:
        """Call it once, when all steps are settled. For some ranks at a time: what is sorted takes as much as the steps."""
        waits, added = _joined(self._waits), _joined(self._added)
        self._waits, self._added = [], []
        for first in range(0, len(self._keys) if waits else 0, RANKS_AT_ONCE):
            folds = [self.folds[key] for key in self._keys[first : first + RANKS_AT_ONCE]]
            _move_waiting(folds, _of_some(waits, first), _of_some(added, first))

    def _note_waited(self, entries: Entries, waited: np.ndarray) -> None:
        some = waited > 0
        columns = (entries.rank, entries.step, entries.length, waited)
        self._waits.append((*(column[some] for column in columns), np.zeros(int(some.sum()), np.int64)))

    def _settle(self, step, count, members, noted):
        before = {key: (self.folds[key].straggler_ns, self.folds[key].bubble_ns) for key, *_ in members}
        super()._settle(step, count, members, noted)
        lengths = {key: length for key, *_, length in members}
        for key, (straggler_ns, bubble_ns) in before.items():
            fold = self.folds[key]
            waits = fold.straggler_ns - straggler_ns, fold.bubble_ns - bubble_ns
            if any(waits):
                self._waits.append(_columns((self._rank[key], step, lengths[key], *waits)))


def _joined(parts: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _of_some(columns: Sequence[np.ndarray], first: int) -> list[np.ndarray]:
    """The entries of RANKS_AT_ONCE ranks from this one on, from which they are counted then."""
    place, *rest = columns
    some = (place >= first) & (place < first + RANKS_AT_ONCE)
    return [place[some] - first, *(column[some] for column in rest)]


def _move_waiting(
    folds: Sequence[TimedFold], waits: Sequence[np.ndarray], added: Sequence[np.ndarray]
) -> None:
    of, step, length, *own = waits
    end, long = _ends(added, of, step), length >= _SPAN_NS_MAX
    for state, ns in zip((_STRAGGLER, _BUBBLE), own, strict=True):
        some = (ns > 0) & (length > 0) & ~long
        _move_many(folds, of[some], state, ns[some], end[some] - length[some], end[some])
        for at in np.flatnonzero((ns > 0) & long).tolist():
            fold, until = folds[int(of[at])], int(end[at])
            span = until - int(length[at]), until
            fold.sums.move(COMMUNICATION, state, int(ns[at]), *span, fold.devices)


def _ends(added: Sequence[np.ndarray], rank: np.ndarray, step: np.ndarray) -> np.ndarray:
    """The end of each of these steps of ranks, the last one's where a rank repeated it."""
    ranks, steps, ends = added
    queried = np.repeat([False, True], [len(ranks), len(rank)])
    both = np.concatenate((ranks, rank)), np.concatenate((steps, step))
    order = np.lexsort((queried, both[1], both[0]))
    last = np.maximum.accumulate(np.where(queried[order], -1, np.arange(len(order))))
    found = np.empty_like(order)
    found[order] = order[last]
    return ends[found[len(ranks) :]]


def _columns(values: Sequence[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.int64) for value in values)


def add_spans(
    folds: Sequence[TimedFold],
    of: np.ndarray,
    states: Mapping[int, np.ndarray],
    begin: np.ndarray,
    end: np.ndarray,
) -> None:
    """BucketSums.add_span for many spans, each of the fold with the place `of`, and their compute; `states` are ns by state."""
    names = sorted(states)
    groups, group = _distinct_sums(folds)
    points = groups[0][0].grid.points
    cells = np.zeros((len(groups), points, len(names)), np.int64)
    compute = np.zeros((len(folds), points), np.int64)
    whole, left = end - begin, np.stack([states[i] for i in names])
    length = whole.copy()
    for rows, buckets, ns in _overlaps(groups[0][0].grid, begin, end):
        mine, lasts = left[:, rows], ns == length[rows]
        part = np.where(lasts, mine, _shared(mine, ns, length[rows]))
        left[:, rows] -= part
        length[rows] -= ns
        np.add.at(cells, (group[of[rows]], buckets), part.T)
        if PRODUCTIVE in states:
            np.add.at(compute, (of[rows], buckets), _part(states[PRODUCTIVE][rows], ns, whole[rows]))
    for (sums, devices), own in zip(groups, cells, strict=True):
        for bucket, at in np.argwhere(own).tolist():
            sums.cells[bucket][names[at]] += int(own[bucket, at]) * devices
    for fold, own in zip(folds, compute, strict=True):
        if fold.compute is not None:
            fold.compute = array("q", map(add, fold.compute, own.tolist()))


def _move_many(
    folds: Sequence[TimedFold], of: np.ndarray, state: int, ns: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> None:
    """BucketSums.move from `communication` for many spans."""
    if not len(ns):
        return
    groups, group = _distinct_sums(folds)
    cells = np.zeros((len(groups), groups[0][0].grid.points), np.int64)
    done, passed = np.zeros_like(ns), np.zeros_like(ns)
    for rows, buckets, overlap in _overlaps(groups[0][0].grid, begin, end):
        passed[rows] += overlap
        now = _part(ns[rows], passed[rows], (end - begin)[rows]) - done[rows]
        done[rows] += now
        np.add.at(cells, (group[of[rows]], buckets), now)
    for (sums, devices), own in zip(groups, cells, strict=True):
        for bucket in np.flatnonzero(own).tolist():
            moved = int(own[bucket]) * devices
            sums.cells[bucket][COMMUNICATION] -= moved
            sums.cells[bucket][state] += moved


def _add_own(folds: Sequence[TimedFold], times: Times, own: np.ndarray, begin: np.ndarray) -> None:
    """The own time of rows of steps, and the steps, by column in proportion to their overlap."""
    columns, of, end = folds[0].columns, times.attempt, times.end
    ns, steps = np.zeros((len(folds), columns.points), np.int64), np.zeros((len(folds), columns.points))
    for rows, places, overlap in _overlaps(columns, begin, end):
        length = (end - begin)[rows]
        np.add.at(ns, (of[rows], places), _part(own[rows], overlap, length))
        np.add.at(steps, (of[rows], places), times.count[rows] * overlap / length)
    for at, fold in enumerate(folds):
        for column in np.flatnonzero(steps[at]).tolist():
            fold.own.ns[column] += int(ns[at, column])
            fold.own.steps[column] += float(steps[at, column])


def _distinct_sums(folds: Sequence[TimedFold]) -> tuple[list[tuple[BucketSums, int]], np.ndarray]:
    """The different sums and numbers of devices of folds, and which of them each fold has."""
    places: dict[tuple[int, int], int] = {}
    found = [places.setdefault((id(fold.sums), fold.devices), len(places)) for fold in folds]
    of = dict(zip(found, folds, strict=True))
    return [(of[place].sums, of[place].devices) for place in range(len(places))], np.array(found)


def _overlaps(
    grid: Grid, begin: np.ndarray, end: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For spans in the grid: the rows of those that have a first, second ... bucket, the buckets, and the ns there."""
    edges = np.array(grid.edges, np.int64)
    rows = np.flatnonzero(end > begin)
    at, to = begin[rows], end[rows]
    bucket = edges.searchsorted(at, side="right") - 1
    while len(rows):
        until = np.minimum(edges[bucket + 1], to)
        yield rows, bucket, until - at
        left = until < to
        rows, at, to, bucket = rows[left], until[left], to[left], bucket[left] + 1


def _shared(states: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """As states.share, for columns of states whose sums are `whole`."""
    scaled = _part(states, part, whole)
    scaled[states.argmax(axis=0), np.arange(len(part))] += part - scaled.sum(axis=0)
    return scaled


def _part(ns: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """ns * part // whole, exactly: of numbers below _SPAN_NS_MAX, of which `part` is at most `whole`."""
    quotient, rest = np.divmod(ns * (part >> _HALF_BITS), whole)
    return (quotient << _HALF_BITS) + ((rest << _HALF_BITS) + ns * (part & ((1 << _HALF_BITS) - 1))) // whole
