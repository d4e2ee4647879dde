"""`python -m bench.analysis.compare`: do the intervals of goodput compare cover the truth, over the autocorrelation of steps?

Pairs of runs whose loader and compute vary, each an autoregressive series, are compared as the command does it, warm-up
included. Of pairs that are alike: how often the interval of the step and of the loader covers 0, and how often
`--fail-if-slower 0%` would fail (a false alarm). Of pairs of which the new one is slower by 4 %: how often that is found.
Steps vary by 12 % (--spread). Exit status 1 if an interval covers the truth in less than 93 % or more than 97 % of
pairs, false alarms are more than 5 %, fewer than 95 % of changes are found up to an autocorrelation of 0.5, or parts do not
add up to the nanosecond.

    python -m bench.analysis.compare [--pairs N] [--steps N] [--spread SHARE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np
from scipy.signal import lfilter

from goodput.account.states import INDEX, STATES
from goodput.compare.comparison import Comparison, compare
from goodput.compare.steps import Steps, warm_up

COEFFICIENTS = tuple(n / 10 for n in range(10))
STEP_NS, RANKS = 500_000_000, 2
CHANGE = 0.04
FOUND_UP_TO = 0.5
BURN_IN = 200


def autocorrelated(random: np.random.Generator, count: int, coefficient: float) -> np.ndarray:
    """A stationary series with mean 0 and standard deviation 1."""
    shocks = random.standard_normal(count + BURN_IN) * (1 - coefficient**2) ** 0.5
    return lfilter([1], [1, -coefficient], shocks)[BURN_IN:]


def run(
    random: np.random.Generator, count: int, coefficient: float, spread: float, slower: float = 0.0
) -> Steps:
    """Steps of which a fifth is loading; loader and compute vary independently, together by `spread` of the step."""
    states = np.zeros((count, len(STATES)), np.int64)
    for name, share in (("loader", 0.2), ("productive", 0.8)):
        noise = spread / 2**0.5 * autocorrelated(random, count, coefficient)
        mean = share * (1 + slower)
        states[:, INDEX[name]] = np.rint(RANKS * STEP_NS * np.maximum(mean + noise, 0.0))
    steps = np.arange(count)
    ranks = np.full(count, RANKS)
    found = Steps("run", steps, states, ranks, 32 * ranks, steps, gpus=RANKS)
    found.warm_up = warm_up(found.lengths)
    return found


def pairs(seed: int, options: argparse.Namespace, coefficient: float, slower: float) -> Iterator[Comparison]:
    random = np.random.default_rng([seed, round(10 * coefficient)])
    for _ in range(options.pairs):
        base = run(random, options.steps, coefficient, options.spread)
        yield compare([base], [run(random, options.steps, coefficient, options.spread, slower)])


def adds_up(found: Comparison) -> bool:
    names = ("base_ns", "new_ns", "change_ns")
    return all(sum(getattr(one, name) for one in found.states) == getattr(found.step, name) for name in names)


def measured(options: argparse.Namespace, coefficient: float) -> tuple[float, float, float, float, bool]:
    """Shares of pairs: the step's interval covers, the loader's does, a false alarm, the change found; and the parts."""
    alike = list(pairs(1, options, coefficient, 0.0))
    slower = list(pairs(2, options, coefficient, CHANGE))
    loaders = [next(one for one in found.states if one.name == "loader") for found in alike]
    return (
        sum(not found.step.is_significant for found in alike) / len(alike),
        sum(not one.is_significant for one in loaders) / len(alike),
        sum(found.step.share_low > 0 for found in alike) / len(alike),
        sum(found.step.share_low > 0 for found in slower) / len(slower),
        all(map(adds_up, [*alike, *slower])),
    )


def main() -> int:
    it = argparse.ArgumentParser("bench.analysis.compare", description=__doc__.split("\n")[0])
    it.add_argument("--pairs", type=int, default=1000)
    it.add_argument("--steps", type=int, default=1000)
    it.add_argument("--spread", type=float, default=0.12, help="of the steps (default: %(default)s)")
    options = it.parse_args()
    print(f"{options.pairs} pairs of {options.steps} steps that vary by {options.spread:.0%}; % of pairs")
    print(
        f"{'autocorrelation':>15}{'step covered':>14}{'loader covered':>16}{'false alarms':>14}{'4 % found':>11}  parts"
    )
    is_good = True
    for coefficient in COEFFICIENTS:
        step, loader, alarms, found, exact = measured(options, coefficient)
        print(
            f"{coefficient:15.1f}{100 * step:14.1f}{100 * loader:16.1f}{100 * alarms:14.1f}{100 * found:11.1f}"
            f"  {'exact' if exact else 'wrong'}",
            flush=True,
        )
        is_good &= 0.93 <= step <= 0.97 and 0.93 <= loader <= 0.97 and alarms <= 0.05 and exact
        is_good &= found >= 0.95 or coefficient > FOUND_UP_TO
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
