"""A window that begins at a snapshot is one that was bounded from the start."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from random import Random

import pytest
from support.core.core_lives import (
    STATES_OF_PHASES,
    columns_of,
    open_run,
    random_lives,
    rows_as_they_may_arrive,
)
from support.core.core_oracle import Life

from goodput._core import CoreError, CoreRun

SEEDS = [*range(150), *(pytest.param(seed, marks=pytest.mark.more_seeds) for seed in range(150, 2000))]
SECOND = 10**9


@dataclass
class History:
    """Lives with places in groups, some of them pipelines, and their rows in two parts: those before a window first."""

    random: Random
    lives: list[Life]
    pipelines: dict[str, tuple[int, int]]
    from_ns: int
    before: list[tuple[int, array]]
    after: list[tuple[int, array]]

    def open(self) -> CoreRun:
        return open_run(self.lives, 60 * SECOND, self.pipelines)

    def bound(self, run: CoreRun) -> None:
        for at, life in enumerate(self.lives):
            run.bound(at, life.from_ns, life.to_ns)


def random_history(seed: int) -> History:
    random = Random(seed)
    lives, pipelines = random_lives(random), {}
    if random.randrange(2):
        pipelines = {life.group: (2, random.randrange(5)) for life in lives}
        for row in (row for life in lives for row in life.rows):
            row.inside["communication"] += random.randrange(30 * SECOND)
    rows = rows_as_they_may_arrive(random, lives)
    ends = [row[2] for _, row in rows] or [0]
    from_ns, to_ns = sorted(
        random.choice(ends) + random.choice([0, 1, random.randrange(SECOND)]) for _ in range(2)
    )
    # A row without length that ends right where the window begins is in a bound, and before a snapshot.
    empty = {
        row[2]
        for at, life in enumerate(lives)
        for row, own in zip(columns_of(life), life.rows, strict=True)
        if not own.inside.total()
    }
    while from_ns in empty:
        from_ns += 1
    begun = {at for at, row in rows if row[2] <= from_ns}
    for at, life in enumerate(lives):
        later = 0 if at in begun else random.choice([0, random.randrange(9 * SECOND)])
        life.stage, life.unit, life.from_ns = life.rank % 2, life.rank % 3, from_ns + later
        life.to_ns = max(to_ns, life.from_ns) if random.randrange(2) else 1 << 61
    for _, row in rows:
        row[3], row[4] = row[0] * 7, row[2] // 3
    before = [(at, row) for at, row in rows if row[2] <= from_ns]
    return History(random, lives, pipelines, from_ns, before, [one for one in rows if one[1][2] > from_ns])


def read(run: CoreRun, history: History) -> list[object]:
    """All that can be read of a run."""
    found: list[object] = [run.rates()]
    for at, life in enumerate(history.lives):
        found += [run.read(at), run.phase_times(at), run.stretches(at), run.planned(at)]
        found += [run.loss(at, restart) for restart in range(len(life.points))]
    stages = range(2 if history.pipelines else 0)
    groups = len({life.group for life in history.lives})
    return found + [run.read_stage(group, stage) for group in range(groups) for stage in stages]


@pytest.mark.parametrize("seed", SEEDS)
def test_window_from_a_snapshot_is_bounded_from_the_start(seed):
    history = random_history(seed)
    bounded = history.open()
    ended = [at for at in range(len(history.lives)) if not history.random.randrange(4)]
    unbounded = [Life(**{**vars(life), "from_ns": 0, "to_ns": 1 << 61}) for life in history.lives]
    whole = open_run(unbounded, 60 * SECOND, history.pipelines)
    for at, row in history.before:
        bounded.fold(at, row)
        whole.fold(at, row)
    for at in ended:
        if not any(one == at for one, _ in history.after):
            bounded.end(at)
            whole.end(at)
    window = CoreRun.restore(whole.save())
    window.forget(history.from_ns)
    history.bound(window)
    assert read(window, history) == read(bounded, history)
    assert window.save() == bounded.save()
    for at, row in history.after:
        for run in (bounded, window):
            run.fold(at, row)
        assert read(window, history) == read(bounded, history)
    for at in range(len(history.lives)):
        for run in (bounded, window):
            run.end(at)
    assert read(window, history) == read(bounded, history)


def test_late_rows_are_forgotten():
    run = CoreRun()
    group = run.group()
    for rank in range(2):
        run.attempt(rank, 0, group, ["productive"])
    rows = [array("q", [number, number - 1, number, 0, 0, number, 0]) for number in range(1, 20)]
    for row in rows:
        run.fold(0, row)
    run.absent(1)
    for row in rows:
        run.fold(1, row)
    assert run.read(1)["late_rows"] > 0
    run.forget(20)
    assert run.read(1)["late_rows"] == 0


def test_refused_after_a_row_that_ended_later():
    run = CoreRun()
    run.attempt(0, 5, run.group(), STATES_OF_PHASES)
    run.forget(3)  # without rows
    phases = [0] * (len(STATES_OF_PHASES) - 1)
    run.fold(0, array("q", [1, 0, 25, 0, 0, 20, *phases, 0, *phases]))
    before = run.save()
    for wrong in (24, -1, 1 << 62):
        with pytest.raises(CoreError):
            run.forget(wrong)
    assert run.save() == before
    run.forget(25)
    assert (run.read(0)["compile"], run.read(0)["rows"], run.read(0)["steps"]) == (0, 1, 0)
