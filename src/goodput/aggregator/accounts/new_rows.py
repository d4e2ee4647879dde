"""Rows of a run's attempts that are not folded yet, as NumPy columns of many attempts side by side."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from goodput._core import READ_INDEX
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Facts, Key
from goodput.aggregator.column_attempt import ColumnAttempt, rows_after
from goodput.wire.step_blocks import DEVICE, END, NUMBER, SAMPLES, STEP, TOTALS

# So many rows and attempts are read together, so that memory and the time until the next slice stay bounded.
ROWS_AT_ONCE, ATTEMPTS_AT_ONCE = 4096, 384
TIME_NS_MAX = (1 << 63) - 1
# The columns of a row in the core, but for the phases.
_PLAIN = (NUMBER, STEP, END, SAMPLES, DEVICE)


# An attempt with rows that are not folded, and the number of the last that is.
Wanted = tuple[Key, ColumnAttempt, int]


class Batch(NamedTuple):
    """Rows of several attempts, each of another rank, side by side: (columns, rows), with the number of rows of each."""

    keys: list[Key]
    values: np.ndarray
    counts: np.ndarray

    def split(self, counts: np.ndarray) -> tuple[Batch, Batch]:
        """The first so many rows of each attempt, and the others."""
        before = np.cumsum(self.counts) - self.counts
        is_first = np.arange(self.values.shape[1]) - np.repeat(before, self.counts) < np.repeat(
            counts, self.counts
        )
        return self._of(is_first, counts), self._of(~is_first, self.counts - counts)

    def _of(self, chosen: np.ndarray, counts: np.ndarray) -> Batch:
        keys = [key for key, count in zip(self.keys, counts.tolist(), strict=True) if count]
        return Batch(keys, self.values[:, chosen], counts[counts > 0])

    def within(self, until_ns: Sequence[int], latest_ns: Sequence[int]) -> np.ndarray:
        """How many of each attempt's rows come before the first one that ends later than this; none where those before, or its
        start, are later already: a clock may have been set back."""
        begins = np.cumsum(self.counts) - self.counts
        is_later = self.values[END] > np.repeat(np.array(until_ns, np.int64), self.counts)
        place = np.where(is_later, np.arange(len(is_later)), len(is_later))
        counts = np.minimum(np.minimum.reduceat(place, begins) - begins, self.counts)
        return np.where(np.array(latest_ns, np.int64) > np.array(until_ns, np.int64), 0, counts)


def table_of(engine: CoreEngine) -> np.ndarray:
    """What the core knows: (attempts, READ_COLUMNS)."""
    return np.asarray(engine.core.read_all()).reshape(-1, len(READ_INDEX))


def wanted_of(engine: CoreEngine) -> list[Wanted] | None:
    """The attempts with rows that are not folded, in the order of ranks and of each rank's attempts.

    None where an attempt goes on that had ended.
    """
    numbers, found = table_of(engine)[:, READ_INDEX["number"]].tolist(), []
    for own in engine.facts.by_rank.values():
        for one in own:
            key = one.rank, one.attempt
            if key not in engine.places:
                continue
            number = numbers[engine.places[key]]
            has_more = one.top_number > number
            if key in engine.ended and (has_more or engine.facts.bounds[key].running):
                return None
            if has_more:
                found.append((key, cast("ColumnAttempt", one), number))
    return found


def settled_until_ns(facts: Facts, key: Key) -> int:
    """Up to when an attempt's rows may be folded for good: up to the account's end, which moves on. What cuts its bound before is
    there to stay."""
    to_ns = facts.bounds[key].to_ns
    return to_ns if to_ns >= facts.end_ns else TIME_NS_MAX


def batches(wanted: Sequence[Wanted], most: int = sys.maxsize) -> Iterator[Batch]:
    """The rows beyond a number of these attempts, of each the first `most`.

    `wanted` has those of a rank in the order of its attempts, and so have the batches.
    """
    left = [one for one in wanted if one[1].top_number > one[2]]
    while left:
        alike: dict[int, list[Wanted]] = {}
        taken, later = set[int](), []
        for one in left:
            if one[0][0] in taken:
                later.append(one)
            else:
                taken.add(one[0][0])
                alike.setdefault(len(one[1].phases), []).append(one)
        for width, own in alike.items():
            counts = [min(attempt.top_number - number, most) for _, attempt, number in own]
            for some in _portions(counts):
                chosen = own[some.start : some.stop]
                values, found, _ = rows_after([one[1:] for one in chosen], width, most)
                batch = Batch([key for key, _, _ in chosen], values, np.asarray(found))
                # Of one there may be none, where rows are missing.
                yield batch._of(np.ones(values.shape[1], bool), batch.counts)
        left = later


def fold(engine: CoreEngine, batch: Batch) -> None:
    """Fold these rows into the core of an engine; of each attempt they follow the ones that were folded."""
    if not batch.keys:
        return
    attempts = array("i", [engine.places[key] for key in batch.keys])
    rows = array("q", batch.counts.astype(np.int64).tobytes())
    engine.wrong += engine.core.fold_blocks(attempts, rows, core_rows(batch.values, engine.origin_ns)).wrong


def fold_parts(engine: CoreEngine, parts: Mapping[Key, np.ndarray]) -> None:
    """The same of columns by attempt, each with as many phases as the attempt has or fewer."""
    for key, values in parts.items():
        if values.shape[1]:
            width = engine.width(key)
            lacking = TOTALS + 2 * width - len(values)
            if lacking:
                values = np.concatenate([values, np.zeros((lacking, values.shape[1]), np.int64)])
            fold(engine, Batch([key], values, np.array([values.shape[1]])))


def core_rows(values: np.ndarray, origin_ns: int = 0) -> array:
    """Columns of wire.step_blocks as the core's rows: an array of their values, row after row."""
    phases = range(TOTALS, len(values), 2)
    found = np.ascontiguousarray(values[[*_PLAIN, *phases, *(at + 1 for at in phases)]].T)
    if origin_ns:
        found[:, 2] -= origin_ns
    return array("q", found.tobytes())


def _portions(counts: Sequence[int]) -> Iterator[range]:
    """Places of attempts with so many rows, ROWS_AT_ONCE and ATTEMPTS_AT_ONCE together, or one attempt alone."""
    begin = rows = 0
    for at, count in enumerate(counts):
        if at > begin and (rows + count > ROWS_AT_ONCE or at - begin >= ATTEMPTS_AT_ONCE):
            yield range(begin, at)
            begin, rows = at, 0
        rows += count
    if begin < len(counts):
        yield range(begin, len(counts))
