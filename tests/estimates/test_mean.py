"""Confidence intervals hold for autocorrelated steps, find what is there, and changes of pace are found."""

import numpy as np
import pytest
from support.compare.logs import autocorrelated

from goodput.compare.steps import warm_up
from goodput.estimates.changes import changes
from goodput.estimates.mean import Mean, difference, mean_of, pooled

PAIRS, STEPS = 1000, 1000


def intervals(coefficient: float, shift: float = 0.0) -> list:
    random = np.random.default_rng(11)
    base, new = (autocorrelated(random, STEPS, coefficient, PAIRS) for _ in range(2))
    return [difference(mean_of(a), mean_of(b + shift)) for a, b in zip(base, new, strict=True)]


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.9])
def test_intervals_cover_and_false_alarms_are_rare(coefficient):
    covered = sum(not one.is_significant for one in intervals(coefficient)) / PAIRS
    assert 0.93 <= covered <= 0.97


def test_usual_intervals_do_not_cover():
    """What the model is for: the same series as independent values."""
    from scipy.stats import ttest_ind  # Takes half a second.

    random = np.random.default_rng(11)
    base, new = (autocorrelated(random, STEPS, 0.9, PAIRS) for _ in range(2))
    p = ttest_ind(base, new, axis=1, equal_var=False).pvalue
    assert (p > 0.05).mean() < 0.6


@pytest.mark.parametrize("coefficient", [0.0, 0.5])
def test_change_of_four_percent_is_found(coefficient):
    """Of steps that vary by 12 %."""
    found = [one for one in intervals(coefficient, 0.04 / 0.12) if one.is_significant and one.value > 0]
    assert len(found) >= 0.95 * PAIRS


def test_independent_values_give_the_usual_interval():
    series = np.random.default_rng(3).standard_normal(5000)
    found = mean_of(series)
    assert found.value == pytest.approx(series.mean(), abs=1e-12)
    assert found.variance == pytest.approx(series.var() / 5000, rel=0.1)


def test_constant_series_has_no_variance():
    assert mean_of(np.full(50, 3.0)) == Mean(3.0, 0.0, 49.0)
    assert difference(mean_of(np.full(50, 3.0)), mean_of(np.full(50, 4.0))) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="two values"):
        mean_of(np.array([1.0]))


def test_runs_that_differ_widen_the_interval():
    alike = pooled([Mean(10, 0.01, 100), Mean(10.01, 0.01, 100)], [500, 500])
    assert alike.value == pytest.approx(10.005) and alike.variance == pytest.approx(0.005)
    apart = pooled([Mean(9, 0.01, 100), Mean(11, 0.01, 100)], [500, 500])
    assert (apart.value, apart.variance, apart.freedom) == (10, pytest.approx(1.0), 1)
    assert pooled([Mean(9, 0.01, 7)], [500]) == Mean(9, 0.01, 7)


@pytest.mark.parametrize("coefficient", [0.0, 0.7])
def test_changes_of_pace_are_found_where_they_are(coefficient):
    noise = 0.02 * autocorrelated(np.random.default_rng(2), 1000, coefficient)[0]
    series = 1 + noise
    assert changes(series) == []
    series[400:] *= 1.1
    series[800:] *= 0.95
    found = changes(series)
    assert len(found) == 2
    assert abs(found[0].index - 400) < 15 and abs(found[1].index - 800) < 15
    assert found[0].share == pytest.approx(0.1, abs=0.02) and found[1].share == pytest.approx(-0.05, abs=0.02)


def test_changes_are_rare_without_any():
    random = np.random.default_rng(4)
    series = 1 + 0.1 * autocorrelated(random, 400, 0.5, 200)
    assert sum(changes(one) != [] for one in series) <= 4


def test_warm_up_is_what_differs_at_the_beginning():
    random = np.random.default_rng(5)
    steady = 1 + 0.02 * autocorrelated(random, 500, 0.5, 40)
    assert sum(warm_up(one) > 0 for one in steady) <= 2
    slow = steady[0] + np.where(np.arange(500) < 30, 0.5, 0)
    assert 30 <= warm_up(slow) <= 40
    assert warm_up(np.ones(3)) == 0
