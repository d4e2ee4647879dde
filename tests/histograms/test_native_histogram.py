"""Native buckets against their bounds in exact arithmetic, and the documented error of quantiles against NumPy."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from goodput.histograms.histogram import BINS, Histogram, bin_of_ns, value_of
from goodput.histograms.native_histogram import (
    ERROR,
    GROWTH,
    OVERFLOW,
    SCHEMA,
    ZERO_THRESHOLD,
    NativeHistogram,
    bucket_of_bin,
)

PER_OCTAVE = 2**SCHEMA


def test_every_bin_lies_between_its_bounds():
    """(2**((i-1)/16), 2**(i/16)] in exact arithmetic: the 16th power of a bin's value against powers of two."""
    for bin in range(1, BINS):
        power, bucket = Fraction(value_of(bin)) ** PER_OCTAVE, bucket_of_bin(bin)
        assert Fraction(2) ** (bucket - 1) < power <= Fraction(2) ** bucket, bin


def test_zero_and_overflow():
    assert bucket_of_bin(0) is None and bin_of_ns(29) == 0 and 29e-9 <= ZERO_THRESHOLD < 31e-9
    assert bucket_of_bin(BINS) == OVERFLOW == 1024 * PER_OCTAVE + 1
    counts = [(None, 2), (3, 1), (OVERFLOW, 4), (None, 1), (3, 5), (1, 0)]
    native = NativeHistogram(counts, 7.5)
    assert native.buckets() == (3, [(3, 6), (OVERFLOW, 4)]) and native.count == 13


def interpolated(native, q: float, exponential: bool) -> float:
    """As Prometheus' histogram_quantile does, linear until 2.x and exponential from 3.0 on."""
    rank, below = q * native.count, 0
    for index, count in native.buckets()[1]:
        if below + count >= rank:
            lower, upper, share = GROWTH ** (index - 1), GROWTH**index, (rank - below) / count
            return lower * GROWTH**share if exponential else lower + (upper - lower) * share
        below += count
    raise AssertionError


@pytest.mark.parametrize("exponential", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_quantiles_stay_within_the_documented_error(seed, exponential):
    rng = random.Random(seed)
    times = [round(1e9 * min(rng.lognormvariate(0, 3), 60_000)) + 61_036 for _ in range(500)]
    histogram = Histogram()
    for one in times:
        histogram.add_ns(one)
    native = NativeHistogram([(bucket_of_bin(bin), count) for bin, count in histogram.to_pairs()], 0.0)
    for q in (0.01, 0.333, 0.5, 0.949, 0.99, 0.999):
        exact = float(np.quantile(times, q, method="inverted_cdf")) / 1e9
        assert abs(interpolated(native, q, exponential) / exact - 1) < ERROR
    assert math.isclose(ERROR, 0.0448, abs_tol=5e-5)
