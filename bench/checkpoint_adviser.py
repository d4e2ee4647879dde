"""`python -m bench.checkpoint_adviser`: what following goodput.checkpoint_due costs, under six laws of failure.

A training of given productive time is simulated with saves and failures. Each failure loses the work since the last save
and costs a restart. The waste is the time beyond productive work and restarts that no policy can avoid: saves and lost
work, over productive work. Compared over the same failures: the adviser, which learns from nothing; an oracle, which
knows the law and the save time and saves by the best policy by age since the last failure; and a save each 30 min.

    python -m bench.checkpoint_adviser [--trainings N] [--failures N]

Counted from the tenth failure on, and from the start. Exit status 1 if the adviser wastes more than 3 % of the oracle's
time more, after ten failures, or over 1 % of the time more than saves each 30 min.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from goodput.sdk.reports.checkpoint_adviser import Adviser

MINUTE, HOUR = 60.0, 3600.0
FIXED_SECONDS = 30 * MINUTE
LEARNED = 10  # failures
GRID = 400


@dataclass(frozen=True)
class Law:
    """`draw(random, count)` gives times between failures in seconds, those of one training in their order."""

    name: str
    save: float
    draw: Callable[[np.random.Generator, int], np.ndarray]


def weibull(shape: float, mean: float, random: np.random.Generator, count: int) -> np.ndarray:
    from math import gamma

    return mean / gamma(1 + 1 / shape) * random.weibull(shape, count)


def bursts(random: np.random.Generator, count: int) -> np.ndarray:
    """After each failure another one soon in half of the cases, else none for long."""
    soon = random.random(count) < 0.5
    return np.where(soon, random.exponential(20 * MINUTE, count), random.exponential(12 * HOUR, count))


def lognormal(random: np.random.Generator, count: int) -> np.ndarray:
    return random.lognormal(np.log(4 * HOUR) - 0.5, 1.0, count)


def regular(random: np.random.Generator, count: int) -> np.ndarray:
    """A job limit: killed every six hours, within some minutes."""
    return np.maximum(random.normal(6 * HOUR, 10 * MINUTE, count), HOUR)


LAWS = [
    Law("exponential", 30.0, lambda random, count: random.exponential(5 * HOUR, count)),
    Law("Weibull, decreasing hazard", 30.0, partial(weibull, 0.6, 5 * HOUR)),
    Law("Weibull, increasing hazard", 60.0, partial(weibull, 2.0, 8 * HOUR)),
    Law("bursts", 20.0, bursts),
    Law("log-normal", 120.0, lognormal),
    Law("job limit", 60.0, regular),
]
Policy = Callable[
    [float, float, float], bool
]  # (time of the attempt, time since the last save, now): is one due


def wasted(gaps: np.ndarray, save: float, due: Callable[[float], float], note=None) -> np.ndarray:
    """Per gap between failures: (productive seconds kept, wasted seconds). `due(age)`: work until the next save."""
    found = np.zeros((len(gaps), 2))
    for at, gap in enumerate(gaps):
        age = kept = spent = 0.0
        while True:
            work = due(age)
            if age + work + save >= gap:
                found[at] = kept, spent + gap - age
                break
            age, kept, spent = age + work + save, kept + work, spent + save
            if note is not None:
                note("save", save)
        if note is not None:
            note("failure", gap)
    return found


def oracle(law: Law) -> Callable[[float], float]:
    """The best policy by age, by dynamic programming over the law's survival (Bouguerra, Trystram and Wagner, 2013).

    Maximises kept work per time: for a value `rate` of a second, the best sum of kept - rate x time until the failure is
    found from the largest age back; `rate` is found by bisection so that this is zero.
    """
    gaps = np.sort(law.draw(np.random.default_rng(99), 200_000))
    ages = np.concatenate([[0.0], np.geomspace(law.save, np.quantile(gaps, 0.9995), GRID)])
    survive = 1 - np.searchsorted(gaps, ages) / len(gaps)
    sums = np.concatenate([[0.0], np.cumsum(gaps)])
    below = sums[np.searchsorted(gaps, ages)] / len(gaps)  # mean of gaps below, times their share

    def best(rate: float) -> tuple[float, np.ndarray]:
        value, choice = np.zeros(len(ages)), np.zeros(len(ages), int)
        for i in range(len(ages) - 2, -1, -1):
            if survive[i] <= 0:
                continue
            ends = np.arange(i + 1, len(ages))
            work = ages[ends] - ages[i] - law.save
            lives = survive[ends] / survive[i]
            lost = (below[ends] - below[i]) / survive[i] - ages[i] * (1 - lives)
            gained = lives * (work - rate * (ages[ends] - ages[i]) + value[ends]) - rate * lost
            gained = np.where(work > 0, gained, -np.inf)
            choice[i] = ends[int(np.argmax(gained))]
            value[i] = gained.max()
        return float(value[0]), choice

    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if best(middle)[0] > 0 else (low, middle)
    _, choice = best(low)
    until = np.array([ages[choice[i]] - ages[i] - law.save for i in range(len(ages) - 1)])

    def due(age: float) -> float:
        at = min(int(np.searchsorted(ages, age, side="right")) - 1, len(until) - 1)
        return float(max(until[at], law.save))

    return due


def following(adviser: Adviser) -> tuple[Callable[[float], float], Callable[[str, float], None]]:
    """The adviser as a policy, and what it is told."""

    def note(kind: str, seconds: float) -> None:
        if kind == "save":
            adviser.note_save(seconds)
        else:
            adviser.note_failure(seconds)

    return lambda age: adviser.interval(age), note


def compared(law: Law, trainings: int, failures: int, policy=None) -> dict[str, tuple[float, float]]:
    """Waste over productive time by policy: after LEARNED failures, and of all."""
    policy = oracle(law) if policy is None else policy
    sums = {name: np.zeros((2, 2)) for name in ("adviser", "oracle", "30 min")}
    for seed in range(trainings):
        gaps = law.draw(np.random.default_rng(seed), failures)
        due, note = following(Adviser())
        for name, found in (
            ("adviser", wasted(gaps, law.save, due, note)),
            ("oracle", wasted(gaps, law.save, policy)),
            ("30 min", wasted(gaps, law.save, lambda _age: FIXED_SECONDS)),
        ):
            sums[name] += [found[LEARNED:].sum(axis=0), found.sum(axis=0)]
    return {
        name: tuple(float(spent / (kept + spent)) for kept, spent in found) for name, found in sums.items()
    }


def main() -> int:
    it = argparse.ArgumentParser("bench.checkpoint_adviser", description=__doc__.split("\n")[0])
    it.add_argument("--trainings", type=int, default=200)
    it.add_argument("--failures", type=int, default=60, help="of each training (default: %(default)s)")
    options = it.parse_args()
    print(f"{'':28}{'after 10 failures':>30}{'from the start':>30}")
    print(f"{'share of time wasted, %':28}" + 2 * f"{'adviser':>10}{'oracle':>10}{'30 min':>10}")
    is_good = True
    for law in LAWS:
        found = compared(law, options.trainings, options.failures)
        cells = [
            f"{100 * found[name][part]:10.2f}" for part in (0, 1) for name in ("adviser", "oracle", "30 min")
        ]
        print(f"{law.name:28}{''.join(cells)}")
        is_good &= found["adviser"][0] <= found["oracle"][0] + 0.03
        is_good &= all(found["adviser"][part] <= found["30 min"][part] + 0.01 for part in (0, 1))
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
