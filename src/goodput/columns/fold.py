"""Steps as NumPy columns folded into the same sums as `Fold.row` has for them, to the nanosecond.

Nearly all rows are ordinary: their phases fill the time since the row before, and no rule changes what it is charged to,
whether they stand for one step or, thinned, for several. Those are added up for all attempts at once, in int64. The few
others (an attempt's first step, stalls, long planned phases, rows that contradict each other, steps that are lost) are
folded one by one, each at its place between the others. With the comparison of ranks a step costs 1.3 us where an
attempt has hundreds at once, and 4 us where it has ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import add
from typing import NamedTuple

import numpy as np

from goodput.account.attempts import Row, padded
from goodput.account.facts import Key
from goodput.account.fold import Fold
from goodput.account.stall_threshold import NOTED_NS
from goodput.account.states import (
    CHECKPOINT,
    COMMUNICATION,
    COMPILE,
    INDEX,
    PLANNED,
    PRODUCTIVE,
    STALL,
    STATES,
    UNATTRIBUTED,
)
from goodput.columns.fold_table import UNKNOWN, FoldTable, RowFold
from goodput.columns.groups import Compared, Times
from goodput.columns.peak_throughput import add_steps
from goodput.columns.shares import scaled, shares
from goodput.slices import Slices, result_of
from goodput.wire.step_blocks import DEVICE, END, NUMBER, SAMPLES, STEP, TOTALS

# Rows and attempts that are folded together, so that memory and the time until the next slice stay bounded.
ROWS_AT_ONCE, ATTEMPTS_AT_ONCE = 4096, 384
# Attempts of which rows are folded one by one, between two turns.
SINGLES_AT_ONCE = 64
# Where an attempt has so many pieces it is cheaper to fold them as a plain Fold.
PLAIN_PIECES = 6
# A row with more samples, or of more time, is folded alone, so that no sum of ROWS_AT_ONCE rows can leave int64.
_SAMPLES_MAX, _SPENT_NS_MAX = 1 << 40, 1 << 50
# Kinds of rows, see _Steps.kinds.
OTHER, ORDINARY, BEYOND, CROSSING = 0, 1, 2, 3
# Pieces of each attempt from its first on that are added for all at once: of one that is ahead of the others those before,
# across and beyond its bound.
PIECES_AT_ONCE = 3
_OUTSIDE = TOTALS + 1
_KEPT, _DEVICE, _END = 0, 3, 7  # rows of _Pieces.sums
_PLANNED = [INDEX[state] for state in PLANNED]


def fold_columns(engine, parts: Mapping[Key, np.ndarray]) -> None:
    """Fold rows of each attempt, (columns, rows) in ascending number, into an account.Engine with ColumnGroups.

    A rank's attempts come in the order of their starts. Columns are those of wire.step_blocks, as many phases as the
    attempt has or fewer.
    """
    result_of(folding_columns(engine, parts))


def folding_columns(engine, parts: Mapping[Key, np.ndarray]) -> Slices[None]:
    """As `fold_columns`, in slices."""
    left = {key: values for key, values in parts.items() if values.shape[1]}
    while left:
        # Of each rank one attempt after the other, since earlier ones set limits for later ones.
        first: dict[int, Key] = {}
        for key in left:
            first.setdefault(key[0], key)
        alike: dict[int, list[Key]] = {}
        for key in first.values():
            alike.setdefault(len(left[key]), []).append(key)
        for keys in alike.values():
            yield from folding_batches(engine, _batches(keys, left))
        for key in first.values():
            del left[key]


class Batch(NamedTuple):
    """Rows of several attempts, each of another rank, side by side: (columns, rows), with the number of rows of each, and
    which columns may have other values than 0."""

    keys: list[Key]
    values: np.ndarray
    counts: np.ndarray
    used: np.ndarray

    def part(self, chosen: np.ndarray) -> Batch:
        """Some of its rows, of the attempts that have any of them."""
        if chosen.all():
            return self
        counts = np.bincount(
            np.repeat(np.arange(len(self.keys)), self.counts)[chosen], minlength=len(self.keys)
        )
        keys = [key for key, count in zip(self.keys, counts.tolist(), strict=True) if count]
        return Batch(keys, self.values[:, chosen], counts[counts > 0], self.used)


def folding_batches(engine, batches: Iterable[Batch]) -> Slices[None]:
    """Fold rows of an engine's attempts, in slices; of each attempt those that follow the ones that were folded."""
    for batch in batches:
        at = engine.folds.rows(batch.keys)
        kinds: dict[tuple[int, ...], list[int]] = {}
        for place, to_state in enumerate(engine.folds.of("to_state", at)):
            kinds.setdefault(to_state, []).append(place)
        for to_state, places in kinds.items():
            some = np.zeros(len(batch.keys), bool)
            some[places] = True
            for own in _in_portions(batch.part(np.repeat(some, batch.counts))):
                yield from _folding_alike(engine, to_state, own, at[some])
                yield
                yield from engine.groups.sweeping()


def _in_portions(batch: Batch) -> Iterator[Batch]:
    """Of one attempt at most ROWS_AT_ONCE rows together."""
    if len(batch.keys) > 1 or not batch.keys:
        yield from [batch] if batch.keys else []
        return
    for at in range(0, batch.values.shape[1], ROWS_AT_ONCE):
        values = batch.values[:, at : at + ROWS_AT_ONCE]
        yield Batch(batch.keys, values, np.array([values.shape[1]]), batch.used)


def portions(counts: Sequence[int]) -> Iterator[range]:
    """Places of attempts with so many rows, ROWS_AT_ONCE and ATTEMPTS_AT_ONCE together, or one attempt alone."""
    begin = rows = 0
    for at, count in enumerate(counts):
        if at > begin and (rows + count > ROWS_AT_ONCE or at - begin >= ATTEMPTS_AT_ONCE):
            yield range(begin, at)
            begin, rows = at, 0
        rows += count
    if begin < len(counts):
        yield range(begin, len(counts))


def _batches(keys: list[Key], parts: Mapping[Key, np.ndarray]) -> Iterator[Batch]:
    counts = [parts[key].shape[1] for key in keys]
    for some in portions(counts):
        own = keys[some.start : some.stop]
        values = [parts[key] for key in own]
        joined = values[0] if len(values) == 1 else np.concatenate(values, axis=1)
        yield Batch(
            own, joined, np.array(counts[some.start : some.stop]), np.logical_or.reduce(joined, axis=1)
        )


class _Steps:
    """Rows of several attempts with the same phases, as what each adds: arrays by row.

    `begins` has the first row of each attempt and, last, the number of rows.
    """

    def __init__(self, table: FoldTable, at: np.ndarray, to_state: Sequence[int], batch: Batch):
        self.table, self.at = table, at
        self.values = batch.values
        self.begins = np.append(0, np.cumsum(batch.counts))
        self.attempt = np.repeat(np.arange(len(at)), batch.counts)
        self._firsts, width = self.begins[:-1], (len(self.values) - TOTALS) // 2
        self._last = _last_rows(table, at, width)
        self.end = latest(self.values[END], self.begins, table.last_end_ns[at])
        self.began = np.empty_like(self.end)
        self.began[1:] = self.end[:-1]
        self.began[self._firsts] = table.last_end_ns[at]
        self.spent = self.values[END] - self.began
        self.count, samples, self.device = self._grown(np.array([NUMBER, SAMPLES, DEVICE]))
        self.samples = np.maximum(samples, 0)
        self._charge(batch.used | self._last.any(axis=1), to_state[:width])

    def _grown(self, columns: np.ndarray) -> np.ndarray:
        """By how much these columns are above those of the row before."""
        values = self.values[columns]
        found = np.empty_like(values)
        np.subtract(values[:, 1:], values[:, :-1], out=found[:, 1:])
        found[:, self._firsts] = values[:, self._firsts] - self._last[columns]
        return found

    def _charge(self, used: np.ndarray, to_state: Sequence[int]) -> None:
        """Time by state within the step and before it, (rows) for the states that occur; `used` are columns that may have
        any."""
        has_outside = used[_OUTSIDE::2]
        phases = np.flatnonzero(used[TOTALS::2] | has_outside)
        has_outside = has_outside[phases]
        inside, outside = self._grown(TOTALS + 2 * phases), self._grown(_OUTSIDE + 2 * phases[has_outside])
        inside[has_outside] -= outside
        # With every phase within the time that passed, which `kinds` bounds, no sum can leave int64.
        self.fits = np.ones(self.values.shape[1], bool)
        for part in (*inside, *outside):
            self.fits &= (part >= 0) & (part <= self.spent)
        states = [to_state[at] for at in phases.tolist() if at < len(to_state)]
        self.inside = _by_state(inside, states)
        self.gap = _by_state(outside, [state for state, has in zip(states, has_outside, strict=False) if has])
        zero = np.zeros(self.values.shape[1], np.int64)
        self.zero = zero
        self.length = sum(self.inside.values(), zero)
        self.before = sum(self.gap.values(), zero)
        self.unplanned = self.length - sum((self.inside.get(i, zero) for i in _PLANNED), zero)
        self.unplanned_before = self.before - sum((self.gap.get(i, zero) for i in _PLANNED), zero)

    def kinds(self) -> np.ndarray:
        """ORDINARY for rows that can be added up, since no rule moves a part of their time, BEYOND for those of them that
        begin after their bound, CROSSING for a single step of them that it cuts at either end, OTHER for all others."""
        table, of = self.table, self.attempt
        from_ns, to_ns, threshold = (
            own[self.at][of] for own in (table.from_ns, table.to_ns, table.threshold_ns)
        )
        found = (self.count >= 1) & (self.spent >= 0) & self.fits & (self.samples < _SAMPLES_MAX)
        found &= (self.spent <= _SPENT_NS_MAX) & (self.length + self.before == self.spent)
        # Of several steps it is unknown how long each was, so none is a stall.
        found &= (self.count > 1) | (np.maximum(self.unplanned, self.unplanned_before) <= threshold)
        planned = np.maximum(self.length - self.unplanned, self.before - self.unplanned_before)
        found &= (planned <= NOTED_NS) & (self.values[STEP] <= table.limit[self.at][of])
        found[self.begins[:-1][table.steps[self.at] == 0]] = False
        # A step without length at the start or the end of its bound counts by another rule.
        is_within = (self.began >= from_ns) & (self.end <= to_ns) & (self.end > from_ns)
        is_beyond = (self.began >= to_ns) & (self.end > to_ns)
        kinds = np.where(found & is_within, ORDINARY, np.where(found & is_beyond, BEYOND, OTHER))
        if table.row_type is RowFold:  # Others record each step.
            is_touching = found & (self.count == 1) & (self.began < to_ns) & (self.end > from_ns)
            kinds[is_touching & ~is_within] = CROSSING
        return kinds

    def work(self) -> np.ndarray:
        """Compute and unattributed time of each step."""
        return self.inside.get(PRODUCTIVE, self.zero) + self.inside.get(UNATTRIBUTED, self.zero)

    def times(self, chosen: np.ndarray) -> Times:
        """Where these steps lie."""
        inside, gap = ({state: ns[chosen] for state, ns in one.items()} for one in (self.inside, self.gap))
        attempt, count = self.attempt[chosen], self.count[chosen]
        return Times(attempt, count, self.began[chosen], self.end[chosen], inside, gap)

    def compared(self) -> Compared:
        """What a step is compared by with those of other ranks."""
        communication, compiling, stalled = (
            self.inside.get(state, self.zero) for state in (COMMUNICATION, COMPILE, STALL)
        )
        own = self.length - communication - compiling - stalled
        return Compared(self.values[STEP], communication, own, self.length.copy())


def latest(values: np.ndarray, begins: np.ndarray, least: np.ndarray) -> np.ndarray:
    """The highest value so far of each attempt; `begins` has the first row of each, `least` what it had before."""
    is_lower = np.append(False, np.diff(values) < 0)
    is_lower[begins[:-1]] = values[begins[:-1]] < least
    if not is_lower.any():
        return values
    found = values.copy()
    for place in np.unique(np.searchsorted(begins, np.flatnonzero(is_lower), side="right") - 1).tolist():
        own = slice(begins[place], begins[place + 1])
        np.maximum.accumulate(np.maximum(values[own], least[place]), out=found[own])
    return found


def counted(rows: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """How many rows of each attempt are true; `begins` has the first of each and, last, their number."""
    return np.diff(np.append(0, np.cumsum(rows))[begins])


def _last_rows(table: FoldTable, at: np.ndarray, width: int) -> np.ndarray:
    """What the next row of each attempt is compared with: (columns, attempts)."""
    table.widen(width)
    found = np.zeros((TOTALS + 2 * width, len(at)), np.int64)
    found[NUMBER], found[SAMPLES], found[DEVICE] = (
        own[at] for own in (table.number, table.last_samples, table.last_device_ns)
    )
    found[TOTALS::2], found[_OUTSIDE::2] = table.totals[at, :width].T, table.outside[at, :width].T
    return found


def _by_state(phases: np.ndarray, to_state: Sequence[int]) -> dict[int, np.ndarray]:
    """(phases, rows) summed by state, without states that have no time."""
    found: dict[int, np.ndarray] = {}
    for state, own in zip(to_state, phases, strict=False):
        if own.any():
            found[state] = found[state] + own if state in found else own
    return found


def _folding_alike(engine, to_state: tuple[int, ...], batch: Batch, at: np.ndarray) -> Slices[None]:
    keys, table = batch.keys, engine.folds
    tops = table.top_step[at]
    steps = _Steps(table, at, to_state, batch)
    kinds = steps.kinds()
    pieces = _Pieces(steps, kinds)
    low, lasts = pieces.firsts[:-1].copy(), pieces.firsts[1:] - 1
    # Most attempts have nothing else.
    some = np.ones(len(at), bool)
    for _ in range(PIECES_AT_ONCE):
        some = some & (low <= lasts) & (pieces.kinds[np.minimum(low, lasts)] != OTHER)
        pieces.add_many(table, at, some, low)
        low += some
    ends = (low <= lasts) & (pieces.kinds[lasts] != OTHER)
    high = lasts + ~ends
    for done, place in enumerate(np.flatnonzero(high > low).tolist(), 1):
        if done % SINGLES_AT_ONCE == 0:
            yield
        own = range(int(low[place]), int(high[place]))
        with table.as_plain_fold(keys[place]) if len(own) >= PLAIN_PIECES else nullcontext():
            for piece in own:
                if pieces.kinds[piece] in (OTHER, CROSSING):
                    engine.row(keys[place], _row_of(pieces.last_rows[:, piece].tolist()))
                else:
                    pieces.add(table[keys[place]], piece)
    pieces.add_many(table, at, ends, lasts)
    for place in np.flatnonzero(table.final[at]).tolist():
        step = int(pieces.last_rows[STEP, lasts[place]])
        table[keys[place]].note_exhausted(step)
    chosen, compared = kinds == ORDINARY, pieces.compared
    engine.groups.take_times(keys, steps.times(chosen), Compared(*(one[chosen] for one in compared)))
    chosen |= pieces.is_cut
    engine.groups.add_columns(at, tops, steps.begins, chosen, steps.count, pieces.within, compared)


class _Pieces:
    """Rows of attempts in pieces, in the order of the rows: consecutive rows of one kind with their sums, and each other row alone.

    `firsts` has the first piece of each attempt and, last, the number of pieces.
    """

    def __init__(self, steps: _Steps, kinds: np.ndarray):
        edges = np.zeros(len(kinds) + 1, bool)
        edges[steps.begins] = True
        edges[1:-1] |= (np.diff(kinds) != 0) | (kinds[1:] == OTHER) | (kinds[1:] == CROSSING)
        bounds = np.flatnonzero(edges)
        begins = bounds[:-1]
        self.bounds = bounds
        self.firsts = np.searchsorted(bounds, steps.begins)
        self.kinds = kinds[begins]
        self.last_rows = steps.values[:, bounds[1:] - 1]

        def sums(values: np.ndarray) -> np.ndarray:
            return np.add.reduceat(values, begins)

        # With another row in it a sum may be anything.
        nothing = np.zeros_like(begins)
        inside, outside = ({i: sums(own) for i, own in one.items()} for one in (steps.inside, steps.gap))
        both = [(one.get(CHECKPOINT, nothing), one.get(PRODUCTIVE, nothing)) for one in (inside, outside)]
        (saved, compute), (saved_before, compute_before) = both
        self.kept = _vectors(inside, len(begins))
        # Compute outside steps belongs to no kept step.
        outside[UNATTRIBUTED] = outside.get(UNATTRIBUTED, nothing) + outside.pop(PRODUCTIVE, nothing)
        self.rest = _vectors(outside, len(begins))
        length, waits = sums(steps.length), np.maximum(steps.unplanned, steps.unplanned_before)
        device = np.minimum(np.maximum(steps.device, 0), steps.length)
        self.sums = np.stack(
            (
                length - inside.get(COMPILE, nothing) - inside.get(STALL, nothing),
                saved + saved_before,
                compute + compute_before,
                sums(device),
                sums(steps.samples),
                np.maximum.reduceat(np.where(steps.count == 1, waits, 0), begins),
                np.maximum.reduceat(steps.values[STEP], begins),
                steps.end[bounds[1:] - 1],
            )
        )
        self._lengths, self._samples, self._works = steps.length, steps.samples, steps.work()
        self._counts, self._steps = steps.count, sums(steps.count)
        self._last_counts = steps.count[bounds[1:] - 1]
        self._ratios = np.ones(len(begins))  # the part of each that lies within its attempt's bound
        # Whether phase_times leaves a piece out, and how many of its steps end within the bound.
        self._is_left_out = self.kinds != ORDINARY
        self._kept_steps = np.where(self._is_left_out, 0, self._steps)
        self.is_cut = np.zeros(
            len(kinds), bool
        )  # rows that were cut to the bound, of which a part lies within it
        self.compared, self.within = steps.compared(), steps.inside.get(COMMUNICATION, steps.zero).copy()

    def add_many(self, table: FoldTable, at: np.ndarray, chosen: np.ndarray, pieces: np.ndarray) -> None:
        """As `add`, or for single rows `Fold.row`, one piece of each of the chosen attempts all at once."""
        if not chosen.any():
            return
        at, pieces = at[chosen], pieces[chosen]
        is_crossing = self.kinds[pieces] == CROSSING
        if is_crossing.any():
            self._cut(table, at[is_crossing], pieces[is_crossing])
        self._add_many(table, at, pieces)

    def _cut(self, table: FoldTable, at: np.ndarray, pieces: np.ndarray) -> None:
        """Cut rows to the bounds that they cross, and add what only such rows have, as Fold.row does."""
        row, from_ns, to_ns = self.bounds[pieces], table.from_ns[at], table.to_ns[at]
        length, end_ns = self._lengths[row], self.sums[_END, pieces]
        inside, gap = self.kept[pieces], self.rest[pieces]
        began, before = end_ns - length, gap.sum(axis=1)
        part = np.maximum(0, np.minimum(end_ns, to_ns) - np.maximum(began, from_ns))
        part_before = np.maximum(0, np.minimum(began, to_ns) - np.maximum(began - before, from_ns))
        self.rest[pieces] = shares(gap, part_before, before)
        kept = self.kept[pieces] = shares(inside, part, length)
        self.sums[_KEPT, pieces] = kept.sum(axis=1) - kept[:, COMPILE] - kept[:, STALL]
        self.sums[_DEVICE, pieces] = scaled(self.sums[_DEVICE, pieces], part, length)
        is_counted = end_ns <= to_ns
        ratio = self._ratios[pieces] = np.divide(part, length, out=1.0 * is_counted, where=length > 0)
        some = (ratio > 0) & (ratio < 1)
        table.add_cut(at[some], kept[some])
        table.cut_work[at[some]] += ratio[some]
        self._kept_steps[pieces], self._is_left_out[pieces] = is_counted, ~is_counted | (began < from_ns)
        self.is_cut[row[ratio > 0]] = True
        self.within[row], self.compared.length[row] = kept[:, COMMUNICATION], part

    def _add_many(self, table: FoldTable, at: np.ndarray, pieces: np.ndarray) -> None:
        rows = self.last_rows[:, pieces]
        kept_ns, saved_ns, compute_ns, device_ns, samples, calm_ns, top_step, end_ns = self.sums[:, pieces]
        begins, rows_each, steps = self.bounds[pieces], np.diff(self.bounds)[pieces], self._steps[pieces]
        kinds = self.kinds[pieces]
        is_left_out, is_kept = self._is_left_out[pieces], kinds != BEYOND
        if is_left_out.any():
            self._leave_out(table, at[is_left_out], rows[:, is_left_out], steps[is_left_out])
        table.number[at], table.last_samples[at], table.last_device_ns[at] = (
            rows[column] for column in (NUMBER, SAMPLES, DEVICE)
        )
        for name, values in (("totals", rows[TOTALS::2]), ("outside", rows[_OUTSIDE::2])):
            own = getattr(table, name)
            own[at, : len(values)], own[at, len(values) :] = values.T, 0
        table.last_count[at], table.last_end_ns[at] = self._last_counts[pieces], end_ns
        table.top_step[at] = np.maximum(table.top_step[at], top_step)
        table.calm_ns[at] = np.maximum(table.calm_ns[at], calm_ns)
        table.steps[at] += rows_each
        table.saved_ns[at] += saved_ns
        kept = at[is_kept]
        table.kept[kept] += self.kept[pieces[is_kept]]
        table.rest[kept] += self.rest[pieces[is_kept]]
        ratios = self._ratios[pieces]
        for name, more in (
            *(("kept_steps", self._kept_steps[pieces]), ("work", steps * ratios)),
            *(("kept_ns", kept_ns), ("device_ns", device_ns), ("kept_samples", samples * ratios)),
        ):
            getattr(table, name)[kept] += more[is_kept]
        table.add_to("samples", at, samples)
        table.add_to("compute_ns", at, compute_ns)
        for count in np.unique(rows_each).tolist():
            some = rows_each == count
            places = begins[some, None] + np.arange(count)
            self._note_lengths(table, at[some], places)

    def _leave_out(self, table: FoldTable, at: np.ndarray, rows: np.ndarray, steps: np.ndarray) -> None:
        """Fold.leave_out of attempts whose last rows these are; called before the table has them."""
        for name, first, sign in (("totals", TOTALS, 1), ("outside", _OUTSIDE, -1)):
            grown = -getattr(table, name)[at]
            grown[:, : len(rows[first::2])] += rows[first::2].T
            table.left_out[at] += sign * grown
        table.left_out_steps[at] += steps

    def _note_lengths(self, table: FoldTable, at: np.ndarray, places: np.ndarray) -> None:
        """Note how long the steps of attempts took that have as many rows: (attempts, rows)."""
        lengths, samples, is_single = self._lengths[places], self._samples[places], self._counts[places] == 1
        slower, plain = np.ones(len(at), bool), is_single.all(axis=1)
        if plain.any():
            slower[plain] = ~add_steps(table, at[plain], samples[plain], lengths[plain])
        for place in np.flatnonzero(slower & samples.any(axis=1)).tolist():
            self._add_throughput(table.row(int(at[place])), places[place])
        for place in np.flatnonzero((table.usual[at, 0] == UNKNOWN) & is_single.any(axis=1)).tolist():
            self._note_usual(table.row(int(at[place])), places[place])

    def _add_throughput(self, fold: Fold, places: np.ndarray) -> None:
        """Add the throughput of some rows to an attempt's."""
        counts, throughput = self._counts[places], fold.throughput
        samples, lengths = self._samples[places].tolist(), self._lengths[places].tolist()
        if (counts == 1).all():
            throughput.add_steps(samples, lengths)
        else:
            for count, many, length in zip(counts.tolist(), samples, lengths, strict=True):
                if many:
                    throughput.add(count, many, length)
        fold.throughput = throughput

    def _note_usual(self, fold: Fold, places: np.ndarray) -> None:
        single = places[self._counts[places] == 1]
        fold.note_usual(self._lengths[single].tolist(), self._works[single].tolist())

    def add(self, fold: Fold, piece: int) -> None:
        """Add a piece of ordinary rows, or of rows beyond the bound, to its attempt's fold."""
        low, high, width = *self.bounds[piece : piece + 2].tolist(), len(fold.to_state)
        row, count = self.last_rows[:, piece].tolist(), int(self._steps[piece])
        kept_ns, saved_ns, compute_ns, device_ns, samples, calm_ns, top_step, fold.last_end_ns = self.sums[
            :, piece
        ].tolist()
        fold.number, fold.last_samples, fold.last_device_ns = row[NUMBER], row[SAMPLES], row[DEVICE]
        before, fold.totals = (fold.totals, fold.outside), padded(tuple(row[TOTALS::2]), width)
        fold.outside = padded(tuple(row[_OUTSIDE::2]), width)
        fold.last_count = int(self._last_counts[piece])
        fold.top_step, fold.calm_ns = max(fold.top_step, top_step), max(fold.calm_ns, calm_ns)
        fold.steps += high - low
        fold.saved_ns += saved_ns
        fold.compute_ns += compute_ns
        if self.kinds[piece] == ORDINARY:
            fold.kept_steps += count
            fold.work += count
            fold.kept = list(map(add, fold.kept, self.kept[piece].tolist()))
            fold.rest = list(map(add, fold.rest, self.rest[piece].tolist()))
            fold.kept_ns += kept_ns
            fold.device_ns += device_ns
            fold.kept_samples += samples
        else:
            fold.leave_out(count, *before)
        if samples:
            fold.samples += samples
            self._add_throughput(fold, np.arange(low, high))
        self._note_usual(fold, np.arange(low, high))


def _vectors(sums: Mapping[int, np.ndarray], count: int) -> np.ndarray:
    """`count` vectors of ns per state from sums by state."""
    found = np.zeros((count, len(STATES)), np.int64)
    for state, own in sums.items():
        found[:, state] = own
    return found


def _row_of(values: list[int]) -> Row:
    number, step, start, end, samples, device, _, _, *phases = values
    return Row(number, step, start, end, samples, tuple(phases[::2]), tuple(phases[1::2]), device)
