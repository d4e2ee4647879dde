"""Intervals hold the mean of a series that is recorded again, also where it drifts from one recording to the next."""

import numpy as np
import pytest
from scipy.special import stdtr
from support.compare.logs import autocorrelated

from goodput.estimates.mean import mean_of
from goodput.estimates.repetition import _within, repetition_of
from goodput.estimates.student import t_quantile

PAIRS, COUNT = 150, 200


def noise(random: np.random.Generator, count: int) -> np.ndarray:
    return random.standard_normal((PAIRS, count))


def alike(random: np.random.Generator, count: int) -> np.ndarray:
    return autocorrelated(random, count, 0.6, PAIRS)


def turns(random: np.random.Generator, count: int) -> np.ndarray:
    """Levels of 40 values each."""
    return noise(random, count) + 0.5 * np.repeat(noise(random, count // 40), 40, axis=1)


def walk(ratio: float):
    """A random walk that makes this many times the difference of noise, as variance: that of a walk is 2 / 3 of its
    length, that of noise 2 / length.
    """
    step = (3 * ratio) ** 0.5 / COUNT
    return lambda random, count: noise(random, count) + step * noise(random, count).cumsum(axis=1)


def flicker(scale: float):
    """Noise of spectrum 1 / frequency, a part of a longer one."""

    def series(random: np.random.Generator, count: int) -> np.ndarray:
        spectrum = np.fft.rfft(random.standard_normal((PAIRS, 4 * count)), axis=1)
        spectrum[:, 1:] /= np.arange(1, 2 * count + 1) ** 0.5
        drift = np.fft.irfft(spectrum, axis=1)[:, :count]
        return noise(random, count) + scale * drift / drift.std()

    return series


def half_width(mean) -> float:
    return t_quantile(0.975, mean.freedom) * mean.variance**0.5


CASES = {
    "noise": (noise, 0.93, 2.2),
    "alike in a row": (alike, 0.93, 2.3),
    "levels": (turns, 0.93, 2.8),
    "small walk": (walk(1), 0.93, 1.6),
    "walk": (walk(3), 0.9, 1.3),
    "large walk": (walk(300), 0.8, 1.3),
    "small flicker noise": (flicker(0.3), 0.93, 1.6),
    "flicker noise": (flicker(3.0), 0.9, 2.0),
}


@pytest.mark.parametrize("name", CASES)
def test_repetition_is_covered_and_the_interval_not_too_wide(name):
    """Against the narrowest interval of one width that covers 95 % of the repetitions."""
    make, covered_min, width_max = CASES[name]
    both = make(np.random.default_rng(11), 2 * COUNT)
    found = [repetition_of(one) for one in both[:, :COUNT]]
    errors = np.abs(both[:, COUNT:].mean(axis=1) - [one.value for one in found])
    widths = np.array([half_width(one) for one in found])
    assert (errors <= widths).mean() >= covered_min
    assert np.median(widths) <= width_max * np.quantile(errors, 0.95)


def test_intervals_of_steps_alone_do_not_cover_drift():
    """What the model of drift is for."""
    for make in (walk(3), flicker(3.0)):
        both = make(np.random.default_rng(11), 2 * COUNT)
        means = [mean_of(one) for one in both[:, :COUNT]]
        widths = [half_width(one._replace(variance=2 * one.variance)) for one in means]
        errors = np.abs(both[:, COUNT:].mean(axis=1) - [one.value for one in means])
        assert (errors <= widths).mean() < 0.8


def test_interval_scales_and_shifts_with_the_series():
    series = np.random.default_rng(3).standard_normal(100).cumsum()
    one, other = repetition_of(series), repetition_of(1e9 + 1e3 * series)
    assert other.value == pytest.approx(1e9 + 1e3 * one.value)
    assert other.variance == pytest.approx(1e6 * one.variance, rel=1e-6)


def test_longer_repetition_is_better_known():
    series = np.random.default_rng(3).standard_normal(1000)
    few, as_many = repetition_of(series, 100), repetition_of(series)
    # Of noise the variance is 1 / 1000 + 1 / count; of drift it is less.
    assert 2 < few.variance / as_many.variance < 5.5


def test_series_without_an_interval():
    constant = repetition_of(np.full(50, 3.0))
    assert (constant.value, constant.variance) == (3.0, 0.0)
    with pytest.raises(ValueError, match="two values, there are 1"):
        repetition_of(np.ones(1))


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 22, 23])
def test_probability_of_students_t(freedom):
    t = np.array([0.0, 0.1, 1.0, 2.0, 50.0])
    assert _within(t, freedom) == pytest.approx(1 - 2 * stdtr(freedom, -t), abs=1e-14)
