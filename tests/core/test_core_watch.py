"""What a watcher is told of rows, first steps and comparisons: together it is what is read, after every call."""

from __future__ import annotations

from array import array
from collections import Counter
from random import Random

import pytest
from support.core.core_lives import open_run, random_lives, rows_as_they_may_arrive

from goodput._core import ROW_STATES, CoreRun, WatchedFirst, WatchedMove, WatchedRow

SECOND = 10**9
STATES = ("unattributed", "productive", "communication")


class Watched:
    """Sums of what it is told, by attempt and column of `CoreRun.read`."""

    def __init__(self):
        self.sums: dict[int, Counter] = {}
        self.rows: Counter = Counter()

    def watch(self, run: CoreRun) -> None:
        run.watch(self.row, self.first, self.moved)

    def add(self, attempt: int, **sums: int) -> None:
        own = self.sums.setdefault(attempt, Counter())
        for name, more in sums.items():
            own[name] += more

    def row(self, row: WatchedRow) -> None:
        self.rows[row.attempt] += 1
        self.add(row.attempt, **dict(zip(ROW_STATES, row.inside, strict=True)))
        outside = zip(ROW_STATES, row.outside, strict=True)
        self.add(row.attempt, **{f"outside_{state}": ns for state, ns in outside})

    def first(self, first: WatchedFirst) -> None:
        states = zip(ROW_STATES, first.before, first.after, strict=True)
        self.add(first.attempt, **{state: after - before for state, before, after in states})

    def moved(self, move: WatchedMove) -> None:
        assert move.straggler_ns or move.bubble_ns
        assert move.first <= move.last
        self.add(move.attempt, straggler_ns=move.straggler_ns, bubble_ns=move.bubble_ns)
        self.add(move.attempt, communication=-move.straggler_ns - move.bubble_ns)

    def check(self, run: CoreRun, attempts: int) -> None:
        names = [*ROW_STATES, *(f"outside_{state}" for state in ROW_STATES), "straggler_ns", "bubble_ns"]
        for attempt in range(attempts):
            read, own = run.read(attempt), self.sums.get(attempt, Counter())
            assert {name: read[name] for name in names} == {name: own[name] for name in names}
            assert read["rows"] == self.rows[attempt]


@pytest.mark.parametrize("seed", range(60))
def test_watched_sums_are_those_read(seed):
    random, watched = Random(seed), Watched()
    lives, pipelines = random_lives(random), {}
    if random.randrange(2):
        pipelines = {life.group: (2, random.randrange(5)) for life in lives}
        for life in lives:
            life.stage, life.unit = life.rank % 2, life.rank % 3
    run = open_run(lives, 60 * SECOND, pipelines)
    watched.watch(run)
    for at, row in rows_as_they_may_arrive(random, lives):
        run.fold(at, row)
        if not random.randrange(30):
            run.absent(random.randrange(len(lives)))
        if not random.randrange(9):
            run = CoreRun.restore(run.save())
            watched.watch(run)
        watched.check(run, len(lives))
    for at in range(len(lives)):
        run.end(at)
        watched.check(run, len(lives))


def test_events_in_order():
    """Two ranks with a first step of 9 s of compute, where those after it have 1 s; the second rank waits 2 s less."""
    run, events = CoreRun(), []
    group = run.group()
    for rank in range(2):
        run.attempt(rank, 0, group, STATES)
    run.watch(events.append, events.append, events.append)
    for rank, waits in ((0, 3), (1, 1)):
        compute, total = 0, 0
        for number in range(1, 3):
            compute, total = compute + (9 if number == 1 else 1) * SECOND, total + waits * SECOND
            run.fold(
                rank, array("q", [number, number - 1, compute + total, 0, 0, 0, compute, total, 0, 0, 0])
            )
    assert [type(event) for event in events] == [WatchedRow] * 4
    assert [(row.attempt, row.step, row.count, row.is_first) for row in events] == [
        *((0, 0, 1, True), (0, 1, 1, False)),
        *((1, 0, 1, True), (1, 1, 1, False)),
    ]
    assert dict(zip(ROW_STATES, events[0].inside, strict=True))["compile"] == 9 * SECOND
    assert events[1].end_ns == 16 * SECOND
    events.clear()
    run.end(0)
    run.end(1)
    first, other, *moves = events
    states = dict(zip(ROW_STATES, zip(first.before, first.after, strict=True), strict=True))
    assert (first.attempt, first.step, states["compile"]) == (0, 0, (9 * SECOND, 8 * SECOND))
    assert (states["productive"], states["communication"]) == ((0, SECOND), (3 * SECOND, 3 * SECOND))
    assert other.attempt == 1
    assert moves == [WatchedMove(0, step, step, 2 * SECOND, 0) for step in range(2)]


def test_blocks_are_watched_until_cleared():
    run, rows = CoreRun(), []
    run.attempt(0, 0, run.group(), STATES)
    run.watch(row=rows.append)
    values = [array("q", [number, number - 1, number, 0, 0, 0, number, 0, 0, 0, 0]) for number in (1, 2)]
    run.fold_blocks(array("i", [0]), array("q", [1]), values[0])
    assert [row.step for row in rows] == [0]
    run.watch()
    run.fold(0, values[1])
    assert len(rows) == 1
