"""Random lives of rank processes, and the core's account of them however their rows arrive."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import fields
from random import Random

import pytest
from support.core.core_oracle import Found, Life, LifeRow

from goodput._core import ROW_STATES, CoreRun

STATES_OF_PHASES = (
    "unattributed",
    "loader",
    "productive",
    "productive",
    "communication",
    "evaluation",
    "compile",
    "restore",
)
SECOND = 10**9


def random_parts(random: Random, most: int = 4) -> Counter:
    """Time by state, ties and long planned phases among them."""
    found = Counter()
    for state in random.choices(STATES_OF_PHASES, k=random.randint(0, most)):
        if state in ("evaluation", "compile", "restore"):
            found[state] = random.choice([0, 0, random.randrange(5 * 3600 * SECOND)])
        else:
            few, many = random.randrange(10), random.randrange(80 * SECOND)
            found[state] = random.choice([few, few, many, SECOND, 7 * SECOND, 90 * SECOND])
    return found


def random_rows(random: Random, most: int, first: int) -> list[LifeRow]:
    found, step, usual = [], first, random_parts(random)
    for _ in range(random.randint(0, most)):
        count = random.choice([1, 1, 1, 1, 1, 1, 1, 2, 5])
        inside = Counter(usual) if random.randrange(3) else random_parts(random)
        gap = Counter() if random.randrange(2) else random_parts(random, 2)
        found.append(LifeRow(step, step + count - 1, gap, inside))
        step += count
    return found


def random_lives(random: Random, ranks: int = 4, rows: int = 40) -> list[Life]:
    found, groups = [], random.choice([("a",), ("a", "b")])
    for attempt in range(random.randint(1, 2)):
        for rank in range(random.randint(1, ranks)):
            own = random_rows(random, rows, random.choice([0, 0, 0, 3]))
            place = f"{random.choice(groups)}{attempt}"
            points = tuple(random.randrange(-1, rows) for _ in range(random.choice([0, 0, 0, 2])))
            limit = min(points) if points else random.choice([None, None, None, random.randrange(-1, rows)])
            life = Life(rank, random.randrange(100), place, own, limit=limit, points=points)
            found.append(life)
    if random.randrange(3) == 0:
        _cut(random, found)
    return found


def _cut(random: Random, lives: list[Life]) -> None:
    """A window that cuts rows of most, and for some a bound of their own."""
    ends = [row[2] for life in lives for row in columns_of(life)]
    cuts = sorted(
        random.choice(ends or [0]) + random.choice([0, 0, random.randrange(SECOND)]) for _ in range(2)
    )
    for life in lives:
        life.from_ns, life.to_ns = cuts
        if random.randrange(4) == 0:
            life.from_ns = min(life.from_ns + random.randrange(9 * SECOND), life.to_ns)


def rows_as_they_may_arrive(random: Random, lives: list[Life]) -> list[tuple[int, array]]:
    """(attempt, row): those of a rank by attempt and number, the ranks in any order."""
    left = {rank: [] for rank in sorted({life.rank for life in lives})}
    for at, life in enumerate(lives):
        left[life.rank] += [(at, row) for row in columns_of(life)]
    order = []
    while any(left.values()):
        rank = random.choice([rank for rank, rows in left.items() if rows])
        count = random.randint(1, 5)
        order += left[rank][:count]
        del left[rank][:count]
    return order


def columns_of(life: Life) -> list[array]:
    """Each of its rows as the core takes it. Time of a state is in its first phase, or the last where there are two."""
    phases = len(STATES_OF_PHASES)
    totals, outside, end, found = [0] * phases, [0] * phases, life.start_ns, []
    for row in life.rows:
        for at, states in enumerate((row.gap, row.inside)):
            for state, ns in states.items():
                phase = STATES_OF_PHASES.index(state) + (state == "productive" and ns % 2)
                totals[phase] += ns
                outside[phase] += 0 if at else ns
                end += ns
        number = row.last - life.rows[0].first + 1
        found.append(array("q", [number, row.last, end, 0, 0, *totals, *outside]))
    return found


def open_run(
    lives: list[Life], least_ns: int, pipelines: dict[str, tuple[int, int]] | None = None
) -> CoreRun:
    run, groups, newest = CoreRun(least_ns), {}, {}
    for life in lives:
        if life.group not in groups:
            groups[life.group] = run.group(*(pipelines or {}).get(life.group, (0, 0)))
        before = newest.get(life.rank, -1)
        newest[life.rank] = run.attempt(
            life.rank,
            life.start_ns,
            groups[life.group],
            STATES_OF_PHASES,
            before=before,
            stage=life.stage,
            unit=life.unit,
        )
        run.limit(newest[life.rank], life.limit, life.points)
        run.bound(newest[life.rank], life.from_ns, life.to_ns)
    return run


def found_of(run: CoreRun, lives: list[Life]) -> list[Found]:
    result = []
    for attempt, life in enumerate(lives):
        values = run.read(attempt)
        inside = Counter({state: values[state] for state in ROW_STATES if values[state]})
        inside["communication"] += values["straggler_ns"] + values["bubble_ns"]
        outside = Counter({s: values[f"outside_{s}"] for s in ROW_STATES if values[f"outside_{s}"]})
        sums = {
            one.name: values[one.name] for one in fields(Found) if one.name in values and one.name != "work"
        }
        sums["kept_steps"] = values["steps"] - values["lost_steps"]
        sums["work"] = pytest.approx(values["work"] / 1e9, abs=1e-6)
        losses = [list(run.loss(attempt, restart)) for restart in range(len(life.points))]
        result.append(Found(+inside, +outside, **sums, losses=losses))
    return result
