"""Quantiles of a rank's last steps, against NumPy."""

import random

import numpy as np
import pytest

from goodput.rank_page.reader import StepRecord
from goodput_exporters.collectors.ranks.recent_steps import QUANTILES, SECONDS_MAX, STEPS_MAX, RecentSteps

SECOND = 10**9


def records(count: int, rng: random.Random) -> tuple[list[StepRecord], list[tuple[int, int]]]:
    """Steps of a compute phase, and in some of a checkpoint; and the time in both of each step."""
    at = compute = checkpoint = 0
    found, spent = [], []
    for number in range(1, count + 1):
        own = int(rng.lognormvariate(18, 0.5)), int(rng.random() < 0.2) * rng.randint(1, SECOND)
        compute, checkpoint = compute + own[0], checkpoint + own[1] + 5
        start, at = at + 5, at + 5 + sum(own)
        totals = (0, compute, checkpoint)
        found.append(StepRecord(number, number - 1, start, at, 0, totals, (0, 0, 5 * number)))
        spent.append(own)
    return found, spent


@pytest.mark.parametrize("count", [1, 2, 30, STEPS_MAX + 100])
def test_quantiles_are_those_of_numpy(count):
    steps, spent = records(count, random.Random(count))
    recent = RecentSteps()
    for at in range(0, count, 7):
        recent.add(steps[at : at + 7])
    found = recent.quantiles(steps[-1].end_ns)
    newest = spent[-STEPS_MAX:]
    want = {0: [sum(own) for own in newest], 1: [own[0] for own in newest]}
    if saves := [own[1] for own in newest if own[1]]:
        want[2] = saves
    assert found == {
        index: [int(np.quantile(own, q, method="inverted_cdf")) / 1e9 for q in QUANTILES.values()]
        for index, own in want.items()
    }


def test_window_moves_by_number_and_age():
    """Step by step, against the steps that are in the window."""
    rng, recent, ended, at = random.Random(3), RecentSteps(), [], 0
    for number in range(1, 1500):
        own = rng.randint(1, SECOND) if number < 1000 else rng.randint(SECOND, 4 * SECOND)
        recent.add([StepRecord(number, number - 1, at, at + own, 0, (at + own,), (0,))])
        at += own
        ended.append((at, own))
        if number % 41 == 0:
            window = [ns for end_ns, ns in ended[-STEPS_MAX:] if at - end_ns <= SECONDS_MAX * SECOND]
            want = [int(np.quantile(window, q, method="inverted_cdf")) / 1e9 for q in QUANTILES.values()]
            assert recent.quantiles(at) == {0: want}


def test_phase_defined_later_counts_from_its_definition():
    recent = RecentSteps()
    recent.add([StepRecord(1, 0, 0, 9, 0, (0, 9), (0, 0)), StepRecord(2, 1, 9, 20, 0, (0, 20), (0, 0))])
    recent.add([StepRecord(3, 2, 20, 30, 0, (0, 25, 8), (0, 0, 3))])
    assert recent.quantiles(30) == {0: [1e-8, 1.1e-8, 1.1e-8], 1: [9e-9, 1.1e-8, 1.1e-8], 2: [5e-9] * 3}


def test_old_steps_and_gaps_are_left_out():
    """The step after the gap would stand for several."""
    steps, spent = records(20, random.Random(1))
    recent = RecentSteps()
    recent.add([*steps[:5], *steps[9:]])
    own = [compute for compute, _ in (*spent[:5], *spent[10:])]
    want = [int(np.quantile(own, q, method="inverted_cdf")) / 1e9 for q in QUANTILES.values()]
    assert recent.quantiles(steps[-1].end_ns)[1] == want
    end_ns = steps[-1].end_ns
    assert set(recent.quantiles(end_ns + (SECONDS_MAX - 1) * SECOND)) == {0, 1, 2}
    assert recent.quantiles(end_ns + (SECONDS_MAX + 1) * SECOND) == {}
