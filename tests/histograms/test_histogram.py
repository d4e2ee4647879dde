"""The fp16 histogram against NumPy, hdrhistogram, fractions and brute force."""

import doctest
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from goodput.histograms import histogram as module
from goodput.histograms.histogram import (
    BINS,
    OCTAVE,
    OVERFLOW,
    OVERFLOW_NS,
    OVERFLOW_SECONDS,
    SLOTS,
    Histogram,
    bin_of,
    bin_of_ns,
    value_of,
)

SAMPLES = 10_000  # q * SAMPLES is whole for every q below, so that hdrhistogram takes the same rank.
QUANTILES = (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
SMALLEST_NORMAL = 2.0**-14  # 61 us; below it the bins have one width.


def near_bin_edges(rng):
    """Values one float away from, and on, the midpoints where fp16 changes its mind."""
    edges = np.array([edges_of(bin)[1] for bin in range(OCTAVE, BINS - 1)])
    below, on, above = np.split(rng.choice(edges, SAMPLES), [SAMPLES // 3, SAMPLES // 2])
    return np.concatenate([np.nextafter(below, 0), on, np.nextafter(above, 1e9)])


DISTRIBUTIONS = {
    "uniform": lambda rng: rng.uniform(0.2, 0.4, SAMPLES),
    "exponential": lambda rng: rng.exponential(0.05, SAMPLES) + 1e-4,
    "lognormal": lambda rng: rng.lognormal(-1, 1.5, SAMPLES),
    "pareto": lambda rng: (rng.pareto(1.5, SAMPLES) + 1) * 0.001,
    "bimodal": lambda rng: np.where(
        rng.random(SAMPLES) < 0.8, rng.normal(0.3, 0.01, SAMPLES), rng.normal(4, 0.2, SAMPLES)
    ),
    "constant": lambda rng: np.full(SAMPLES, 0.3),
    "gamma": lambda rng: rng.gamma(2, 0.01, SAMPLES) + 1e-4,
    "weibull": lambda rng: rng.weibull(0.7, SAMPLES) + 1e-3,
    "tiny": lambda rng: rng.uniform(0, SMALLEST_NORMAL, SAMPLES),
    "spiky": lambda rng: np.where(rng.random(SAMPLES) < 0.003, 90.0, rng.normal(0.25, 0.001, SAMPLES)),
    "hours": lambda rng: np.minimum((rng.pareto(0.5, SAMPLES) + 1) * 0.01, 65_000.0),
    "near bin edges": near_bin_edges,
}


@pytest.fixture(params=DISTRIBUTIONS)
def samples(request):
    values = DISTRIBUTIONS[request.param](np.random.default_rng(20))
    assert len(values) == SAMPLES and values.min() >= 0
    return values


def edges_of(bin):
    """The seconds that round into a bin: halfway to its neighbours, exactly; a tie rounds to the even bin."""
    if bin == OVERFLOW:
        return OVERFLOW_SECONDS, math.inf
    low = (value_of(bin - 1) + value_of(bin)) / 2 if bin else 0.0
    return low, OVERFLOW_SECONDS if bin == BINS - 1 else (value_of(bin) + value_of(bin + 1)) / 2


def error_allowed(seconds):
    """The guarantee: half a bin."""
    return seconds * 2**-11 if seconds >= SMALLEST_NORMAL else 30e-9


# Bins


def test_every_bin_has_its_value_and_interval():
    for bin in range(SLOTS):
        value = value_of(bin)
        low, high = edges_of(bin)
        assert bin_of(value) == bin
        assert low <= value < high or (bin == OVERFLOW and value == high == math.inf)
        assert bin_of(math.nextafter(low, math.inf)) == bin
        assert bin_of(math.nextafter(high, 0)) == bin
        assert bin_of(low) == (bin if bin % 2 == 0 else bin - 1)
        if bin < OVERFLOW:
            assert edges_of(bin + 1)[0] == high
            assert max(value - low, high - value) <= error_allowed(value)


def test_bins_are_those_of_numpy():
    rng = np.random.default_rng(1)
    even_in_logarithm = np.exp(rng.uniform(math.log(1e-9), math.log(65_519.99), 20_000))
    values = np.concatenate([even_in_logarithm, near_bin_edges(rng), [0.0]])
    expected = values.astype(np.float16).view(np.uint16)
    assert [bin_of(value) for value in values.tolist()] == expected.tolist()
    bits = np.arange(BINS, dtype=np.uint16)
    assert bits.view(np.float16).tolist() == [value_of(bin) for bin in range(BINS)]


def test_bins_of_nanoseconds_are_those_of_the_exact_fraction():
    """Whole nanoseconds on and around the midpoints: dividing them must not carry one across."""
    on_a_midpoint = 0
    for bin in [*range(OCTAVE, BINS - 1, 17), BINS - 2]:
        edge_ns = Fraction(edges_of(bin)[1]) * 10**9
        for nanoseconds in range(math.floor(edge_ns) - 2, math.floor(edge_ns) + 4):
            tie = nanoseconds == edge_ns
            on_a_midpoint += tie
            assert bin_of_ns(nanoseconds) == bin + (bin % 2 if tie else nanoseconds > edge_ns)
    assert on_a_midpoint > 100


def test_bins_below_61_us_are_those_of_the_exact_fraction():
    for nanoseconds in range(61_000):
        scaled = Fraction(nanoseconds, 10**9) * 2**24
        assert bin_of_ns(nanoseconds) == round(scaled)  # round() takes ties to even, too.


@pytest.mark.parametrize(
    ("seconds", "bin"),
    [
        (0.0, 0),
        (-0.0, 0),
        (2**-25, 0),
        (math.nextafter(2**-25, 1), 1),
        (2**-14, OCTAVE),
        (1.0, 15 * OCTAVE),
        (1, 15 * OCTAVE),
        (65504.0, BINS - 1),
        (math.nextafter(65520.0, 0), BINS - 1),
        (65520.0, OVERFLOW),
        (1e300, OVERFLOW),
        (10**400, OVERFLOW),
        (math.inf, OVERFLOW),
    ],
)
def test_bin_of_named_values(seconds, bin):
    assert bin_of(seconds) == bin


def test_bin_of_nanoseconds_named_values():
    assert bin_of_ns(0) == 0
    assert bin_of_ns(65520 * 10**9 - 1) == BINS - 1
    assert bin_of_ns(65520 * 10**9) == bin_of_ns(10**400) == OVERFLOW


@pytest.mark.parametrize("seconds", [-1e-12, -1, -math.inf, math.nan])
def test_bin_of_rejects_invalid_durations(seconds):
    with pytest.raises(ValueError, match="zero or more seconds"):
        bin_of(seconds)


@pytest.mark.parametrize("bin", [-1, SLOTS])
def test_value_of_rejects_invalid_bins(bin):
    with pytest.raises(ValueError, match="a bin must be"):
        value_of(bin)


# Quantiles


def test_quantiles_are_the_rounding_of_numpys(samples):
    nanoseconds = np.round(samples * 1e9).astype(np.int64)
    histogram, samples = histogram_of(nanoseconds.tolist()), nanoseconds / 1e9
    for q, ours in zip(QUANTILES, histogram.quantiles(QUANTILES), strict=True):
        exact = float(np.quantile(samples, q, method="inverted_cdf"))
        assert abs(ours - exact) <= error_allowed(exact)
        assert ours == float(np.float16(exact))
    assert histogram.quantiles([0, 1]) == [float(np.float16(samples.min())), float(np.float16(samples.max()))]


def test_quantiles_agree_with_hdrhistogram(samples):
    nanoseconds = [round(value * 1e9) for value in samples.tolist()]
    ours, theirs = Histogram(), HdrHistogram(1, 65_520 * 10**9, 3)
    for value in nanoseconds:
        ours.add_ns(value)
        assert theirs.record_value(value)
    at = theirs.get_percentile_to_value_dict([100 * q for q in QUANTILES])
    for q in QUANTILES:
        (value,), bound = ours.quantiles([q]), at[100 * q] / 1e9
        # Three digits are buckets of 2**-10 of the value at most, of which it reports the upper end.
        assert abs(value - bound) <= error_allowed(max(value, bound)) + bound * 2**-10


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=60), st.floats(0, 1))
def test_quantile_is_the_smallest_value_with_enough_samples_below(nanoseconds, q):
    histogram = Histogram()
    for value in nanoseconds:
        histogram.add_ns(value)
    values = sorted(value_of(bin_of_ns(value)) for value in nanoseconds)
    needed = math.ceil(q * len(values))
    expected = next(v for v in values if sum(other <= v for other in values) >= needed)
    assert histogram.quantiles([q]) == [expected]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 20, 100, 1000])
def test_quantile_ranks_are_numpys_for_round_quantiles(count):
    """0.07 * 100 is 7.000000000000001 in binary64; NumPy counts it as such, and so do we."""
    values = np.arange(1, count + 1) / 8  # Up to 125, every eighth below 256 is an fp16 number.
    histogram = histogram_of((values * 10**9).astype(np.int64).tolist())
    for q in np.arange(101) / 100:
        assert histogram.quantiles([q]) == [np.quantile(values, q, method="inverted_cdf")]


def test_quantiles_of_nothing_are_unknown():
    histogram = Histogram()
    assert histogram.quantiles([0.5, 0.99]) == [None, None]
    assert (histogram.count, histogram.sum_ns) == (0, 0)


@pytest.mark.parametrize("q", [-0.01, 1.01, math.nan])
def test_invalid_quantile_is_rejected(q):
    with pytest.raises(ValueError, match=r"0 \.\. 1"):
        Histogram().quantiles([q])


def test_overflow_is_counted_and_infinite():
    histogram = histogram_of([10**9] * 3 + [OVERFLOW_NS])
    assert histogram.to_pairs()[-1] == (OVERFLOW, 1)
    assert histogram.quantiles([0.75, 0.76]) == [1.0, math.inf]
    assert histogram.sum_ns == 65_523 * 10**9


# Count and sum


@given(st.lists(st.integers(0, 10**15), max_size=30))
def test_count_and_sum_are_exact(values):
    histogram = histogram_of(values)
    assert (histogram.count, histogram.sum_ns) == (len(values), sum(values))
    assert sum(count for _, count in histogram.to_pairs()) == len(values)


def test_negative_duration_is_rejected():
    histogram = Histogram()
    with pytest.raises(ValueError, match="nanoseconds"):
        histogram.add_ns(-1)
    assert histogram == Histogram()


# Merging


def histogram_of(values):
    histogram = Histogram()
    for nanoseconds in values:
        histogram.add_ns(nanoseconds)
    return histogram


def merged(*histograms):
    both = Histogram()
    for one in histograms:
        both.merge(one)
    return both


cases = st.lists(st.integers(0, 10**14), max_size=12)


@given(cases, cases, cases)
def test_merging_equals_adding_all_in_any_order(first, second, third):
    a, b, c = map(histogram_of, (first, second, third))
    assert merged(a, b) == merged(b, a)
    assert merged(merged(a, b), c) == merged(a, merged(b, c)) == histogram_of(first + second + third)
    assert merged(a, b, c).count == len(first + second + third)
    assert a == histogram_of(first), "merging leaves the other as it was"


def test_merging_with_itself_doubles():
    histogram = histogram_of([10, 10**9, 10**9])
    histogram.merge(histogram)
    assert histogram == histogram_of([10, 10, *[10**9] * 4]) and histogram.count == 6


def test_equality_compares_bins_and_sum():
    assert histogram_of([10**9]) != histogram_of([10**9 + 1]), "the same bin, another sum"
    assert histogram_of([0, 2 * 10**9]) != histogram_of([10**9, 10**9]), "the same sum, other bins"
    assert histogram_of([10**9]) != 1
    with pytest.raises(TypeError):
        hash(Histogram())


def test_histogram_of_every_bin_keeps_all_of_them():
    nanoseconds = {
        bin_of_ns(math.ceil(value_of(bin) * 1e9)): math.ceil(value_of(bin) * 1e9) for bin in range(BINS)
    }
    histogram = histogram_of([*nanoseconds.values(), OVERFLOW_NS])
    bins = [*nanoseconds, OVERFLOW]
    assert len(bins) > SLOTS - OCTAVE and histogram.to_pairs() == [(bin, 1) for bin in bins]
    for rank in random.Random(3).sample(range(1, len(bins) + 1), 20):
        q = (rank - 0.5) / len(bins)  # Half a sample away from where rounding could change the rank.
        assert histogram.quantiles([q]) == [value_of(bins[rank - 1])]


def test_the_example_in_the_docstring_runs():
    failed, attempted = doctest.testmod(module)
    assert attempted and not failed
