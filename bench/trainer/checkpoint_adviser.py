"""`python -m bench.trainer.checkpoint_adviser`: what following goodput.checkpoint_due costs, under six laws of failure.

The waste is the time in saves and in work lost by failures over all time, expected under the law for the saves that a
policy makes: the adviser after so many failures of a training, which it learned from alone; an oracle, which knows the law
and saves by the best policy by age; and a save each 30 min. Expected, since the chance of what is lost in a few dozen
failures is larger than what policies differ by.

    python -m bench.trainer.checkpoint_adviser [--trainings N] [--law NAME] [--bound]

`--bound` shows what no policy can do much better than on average, where lives of about the same time have to show their
spread: one that knows that they are normal, their mean, and that spreads from 2 to 60 min are equally probable by order of
magnitude.

Exit status 1 if the adviser wastes over 1 % more than saves each 30 min after any number of failures, or after ten over 3 %
more than the oracle. Of lives that end after about the same time ten do not show the spread: there the bar is a policy that
knows that they are normal. Where the job's end is known, the adviser is told.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy

from goodput.sdk.reports.checkpoint_adviser import Adviser

MINUTE, HOUR = 60.0, 3600.0
FIXED_SECONDS = 30 * MINUTE
LEARNED = 10  # failures
COUNTS = (0, 1, 2, 3, 5, LEARNED, 20, 40)
LIVES_MAX = 10  # for each failure, the others of which end at the limit
SURVIVAL_MIN = 1e-4
GRID = 1500  # ages of the oracle by quantile, and as many by ratio
DRAWS = 400_000
REGULAR_MEAN = 6 * HOUR
SPREADS = MINUTE * np.geomspace(2, 60, 35)
BOUND_MINUTES = (2.5, 5, 10, 20, 40)
# Lives that happen to be nearly alike are rare and cost much, so that 40 trainings do not show the mean there.
TRAININGS, BOUND_TRAININGS = 40, 200


@dataclass(frozen=True)
class Law:
    """`draw(random, count)` gives times between failures in seconds, those of one training in their order."""

    name: str
    save: float
    draw: Callable[[np.random.Generator, int], np.ndarray]
    end: float = np.inf  # of the job, where it is known


def weibull(shape: float, mean: float, random: np.random.Generator, count: int) -> np.ndarray:
    from math import gamma

    return mean / gamma(1 + 1 / shape) * random.weibull(shape, count)


def bursts(random: np.random.Generator, count: int) -> np.ndarray:
    """After each failure another one soon in half of the cases, else none for long."""
    soon = random.random(count) < 0.5
    return np.where(soon, random.exponential(20 * MINUTE, count), random.exponential(12 * HOUR, count))


def lognormal(random: np.random.Generator, count: int) -> np.ndarray:
    return random.lognormal(np.log(4 * HOUR) - 0.5, 1.0, count)


def regular(random: np.random.Generator, count: int, spread: float = 10 * MINUTE) -> np.ndarray:
    """Killed every six hours, within some minutes."""
    return np.maximum(random.normal(REGULAR_MEAN, spread, count), HOUR)


def limited(random: np.random.Generator, count: int) -> np.ndarray:
    """Failures at random, and a limit of the job's time that is known."""
    return np.minimum(random.exponential(20 * HOUR, count), 6 * HOUR)


LAWS = [
    Law("exponential", 30.0, lambda random, count: random.exponential(5 * HOUR, count)),
    Law("Weibull, decreasing hazard", 30.0, partial(weibull, 0.6, 5 * HOUR)),
    Law("Weibull, increasing hazard", 60.0, partial(weibull, 2.0, 8 * HOUR)),
    Law("bursts", 20.0, bursts),
    Law("log-normal", 120.0, lognormal),
    Law("about the same time", 60.0, regular),
    Law("known limit", 60.0, limited, 6 * HOUR),
]
REGULAR = LAWS[-2]
Policy = Callable[[float], float]  # by the age at which a save has just been made: work until the next one


def expected_waste(gaps: np.ndarray, save: float, due: Policy) -> float:
    """Time in saves and lost work over all time, for lives that end as the sorted `gaps` do."""
    age = kept = 0.0
    while True:
        work = due(age)
        age += work + save
        survival = 1 - np.searchsorted(gaps, age) / len(gaps)
        if survival < SURVIVAL_MIN:
            return 1 - kept / float(gaps.mean())
        kept += survival * work


def most_kept(ages: np.ndarray, survive: np.ndarray, save: float) -> np.ndarray:
    """From each age, at which a save ends, the most work that later saves are expected to keep, times its survival."""
    kept = np.zeros(len(ages))
    for i in range(len(ages) - 2, -1, -1):
        later = survive[i + 1 :] * (ages[i + 1 :] - ages[i] - save) + kept[i + 1 :]
        kept[i] = max(0.0, float(later.max()))
    return kept


def oracle(law: Law) -> Policy:
    """The best policy by age, by dynamic programming over the law's survival (Bouguerra, Trystram and Wagner, 2013).

    When a failure comes does not depend on the saves, so what is kept until then is to be most: the sum over saves that
    end at ages a < b < ... of survival(b) (b - a - save). Ages lie closer than a tenth of the best intervals.
    """
    gaps = np.sort(law.draw(np.random.default_rng(99), DRAWS))
    last = np.quantile(gaps, 0.9999)
    ages = np.unique(
        np.concatenate(
            [[0.0], np.geomspace(law.save, last, GRID), np.quantile(gaps, np.linspace(0, 0.9995, GRID))]
        )
    )
    survive = 1 - np.searchsorted(gaps, ages) / len(gaps)
    kept = most_kept(ages, survive, law.save)
    settled = ages[len(ages) * 49 // 50]  # beyond it too few draws are left

    def due(age: float) -> float:
        age = min(age, settled)
        first = int(np.searchsorted(ages, age + law.save, side="right"))
        at = first + int(np.argmax(survive[first:] * (ages[first:] - age - law.save) + kept[first:]))
        return float(max(ages[at] - age - law.save, law.save))

    return due


class KnowsNormal:
    """What can be known of lives of about the same length: an adviser that knows that they are normal.

    It learns mean and spread.

    The law of the next life is then Student's, with one degree of freedom less than there were lives, and the best saves
    for it are found as the oracle's are.
    """

    def __init__(self):
        self._lives: list[float] = []
        self._plan: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def note_save(self, seconds: float) -> None:
        self._save = seconds

    def note_failure(self, seconds: float) -> None:
        self._lives.append(seconds)
        self._plan = None

    def interval(self, age: float) -> float:
        if len(self._lives) < 2:
            return FIXED_SECONDS
        if self._plan is None:
            lives = np.array(self._lives)
            spread = lives.std(ddof=1) * (1 + 1 / len(lives)) ** 0.5
            begin, end = max(lives.mean() - 12 * spread, 10 * self._save), lives.mean() + 8 * spread
            ages = np.concatenate([[0.0], np.linspace(begin, end, GRID)])
            survive = scipy.stats.t.sf((ages - lives.mean()) / spread, len(lives) - 1)
            self._plan = ages, survive, most_kept(ages, survive, self._save)
        ages, survive, kept = self._plan
        first = int(np.searchsorted(ages, age + self._save, side="right"))
        if first >= len(ages) - 1:
            return 5 * self._save
        at = first + int(np.argmax(survive[first:] * (ages[first:] - age - self._save) + kept[first:]))
        return float(max(ages[at] - age - self._save, self._save))


class KnowsMean(KnowsNormal):
    """Knows all of the law but the spread, of which it knows the range, and plans for its posterior mixture."""

    def interval(self, age: float) -> float:
        if self._plan is None and self._lives:
            errors, count = np.array(self._lives) - REGULAR_MEAN, len(self._lives)
            likelihoods = -count * np.log(SPREADS) - (errors**2).sum() / 2 / SPREADS**2
            weights = np.exp(likelihoods - likelihoods.max())
            weights /= weights.sum()
            reach = 8 * float((weights @ SPREADS**2) ** 0.5)
            ages = np.linspace(max(REGULAR_MEAN - reach, 0.0), REGULAR_MEAN + reach, GRID)
            ages = np.concatenate([[0.0], ages[ages > 0]])
            survive = scipy.stats.norm.sf((ages[:, None] - REGULAR_MEAN) / SPREADS) @ weights
            self._plan = ages, survive, most_kept(ages, survive, self._save)
        return super().interval(age)


def print_bound(trainings: int) -> None:
    print(f"{'spread, min':>12}{'oracle, %':>12}{'knows the mean / oracle':>26}{'adviser / oracle':>18}")
    every = []
    for minutes in BOUND_MINUTES:
        law = Law("", REGULAR.save, partial(regular, spread=minutes * MINUTE))
        policy = oracle(law)
        known, advised = (compared(law, trainings, (LEARNED,), policy, one) for one in (KnowsMean, Adviser))
        best = known["oracle"][0]
        every.append((known["adviser"][0] / best, advised["adviser"][0] / best))
        print(f"{minutes:12}{100 * best:12.2f}{every[-1][0]:26.3f}{every[-1][1]:18.3f}", flush=True)
    means = [sum(column) / len(every) for column in zip(*every, strict=True)]
    print(f"{'mean':>24}{means[0]:26.3f}{means[1]:18.3f}")


def compared(
    law: Law, trainings: int, learned: tuple[int, ...], policy: Policy | None = None, advised=None
) -> dict[str, list[float]]:
    """Expected waste by policy, each after so many failures: of the adviser the mean over trainings."""
    policy = oracle(law) if policy is None else policy
    advised = Adviser if advised is None else advised
    gaps = np.sort(law.draw(np.random.default_rng(98), DRAWS))
    wastes = np.zeros(len(learned))
    for seed in range(trainings):
        adviser, failures = advised(), 0
        adviser.note_save(law.save)
        adviser.end = law.end
        lives = iter(law.draw(np.random.default_rng(seed), LIVES_MAX * max(learned)))
        for at, count in enumerate(learned):
            while failures < count:
                gap = next(lives)
                (adviser.note_failure if gap < law.end else adviser.note_alive)(gap)
                failures += gap < law.end
            wastes[at] += expected_waste(gaps, law.save, adviser.interval) / trainings
    best = expected_waste(gaps, law.save, policy)
    fixed = expected_waste(gaps, law.save, lambda _age: FIXED_SECONDS)
    same = len(learned)
    return {"adviser": wastes.tolist(), "oracle": [best] * same, "30 min": [fixed] * same}


def main() -> int:
    it = argparse.ArgumentParser("bench.trainer.checkpoint_adviser", description=__doc__.split("\n")[0])
    it.add_argument("--trainings", type=int, help=f"default: {TRAININGS}, with --bound {BOUND_TRAININGS}")
    it.add_argument("--law", help="only those with this in their name")
    it.add_argument("--bound", action="store_true", help="the least waste if the spread has to be learned")
    options = it.parse_args()
    if options.bound:
        print_bound(options.trainings or BOUND_TRAININGS)
        return 0
    print(
        f"{'share of time wasted, %':28}{'oracle':>8}{'30 min':>8}   adviser / oracle after so many failures"
    )
    print(f"{'':44}{''.join(f'{count:>8}' for count in COUNTS)}")
    is_good = True
    for law in LAWS:
        if options.law and options.law not in law.name:
            continue
        found = compared(law, options.trainings or TRAININGS, COUNTS)
        best, fixed = found["oracle"][0], found["30 min"][0]
        ratios = "".join(f"{waste / best:8.3f}" for waste in found["adviser"])
        print(f"{law.name:28}{100 * best:8.2f}{100 * fixed:8.2f}{ratios}", flush=True)
        of_fixed = "".join(f"{waste / fixed:8.3f}" for waste in found["adviser"])
        print(f"{'  of 30 min':44}{of_fixed}", flush=True)
        at = COUNTS.index(LEARNED)
        limit = 1.03 * best
        if law is REGULAR:
            known = compared(law, options.trainings or TRAININGS, COUNTS[1:], advised=KnowsNormal)["adviser"]
            ratios = "".join(f"{waste / best:8.3f}" for waste in known)
            print(f"{'  knows that they are normal':52}{ratios}", flush=True)
            limit = max(limit, 1.03 * known[at - 1])
        is_good &= found["adviser"][at] <= limit and max(found["adviser"]) <= 1.01 * fixed
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
