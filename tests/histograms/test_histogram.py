"""The fp16 histogram against NumPy, hdrhistogram, fractions and brute force."""

import doctest
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput.histograms import histogram as module
from goodput.histograms.histogram import (
    BINS,
    COUNT_MAX,
    DENSE_WORDS,
    LATENCY_BOUNDS,
    OCTAVE,
    OVERFLOW,
    SLOTS,
    SUM_NS_MAX,
    Histogram,
    bin_of,
    bin_of_ns,
    edges_of,
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


def filled(values):
    histogram = Histogram()
    for value in values:
        histogram.add(float(value))
    return histogram


def error_allowed(seconds):
    """The guarantee: half a bin."""
    return seconds * 2**-11 if seconds >= SMALLEST_NORMAL else 30e-9


# Bins


def test_every_bin_holds_its_value_and_its_interval():
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
def test_bin_of_refuses_what_is_no_duration(seconds):
    with pytest.raises(ValueError, match="zero or more seconds"):
        bin_of(seconds)
    with pytest.raises(ValueError, match="zero or more seconds"):
        Histogram().add(seconds)


@pytest.mark.parametrize("bin", [-1, SLOTS, 1.0, None, True])
def test_value_and_edges_refuse_what_is_no_bin(bin):
    for function in (value_of, edges_of):
        with pytest.raises(ValueError, match="a bin must be"):
            function(bin)


# Quantiles


def test_quantiles_are_the_rounding_of_numpys(samples):
    histogram = filled(samples)
    for q, ours in zip(QUANTILES, histogram.quantiles(QUANTILES), strict=True):
        exact = float(np.quantile(samples, q, method="inverted_cdf"))
        assert abs(ours - exact) <= error_allowed(exact)
        assert ours == float(np.float16(exact))
        assert ours == histogram.quantile(q)
    assert histogram.min == histogram.quantile(0) == float(np.float16(samples.min()))
    assert histogram.max == float(np.float16(samples.max()))


def test_quantiles_agree_with_hdrhistogram(samples):
    nanoseconds = [round(value * 1e9) for value in samples.tolist()]
    ours, theirs = Histogram(), HdrHistogram(1, 65_520 * 10**9, 3)
    for value in nanoseconds:
        ours.add_ns(value)
        assert theirs.record_value(value)
    at = theirs.get_percentile_to_value_dict([100 * q for q in QUANTILES])
    for q in QUANTILES:
        value, bound = ours.quantile(q), at[100 * q] / 1e9
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
    assert histogram.quantile(q) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 20, 100, 1000])
def test_quantile_ranks_are_numpys_for_round_quantiles(count):
    """0.07 * 100 is 7.000000000000001 in binary64; NumPy counts it as such, and so do we."""
    values = np.arange(1, count + 1) / 8  # Up to 125, every eighth below 256 is an fp16 number.
    histogram = filled(values)
    for q in np.arange(101) / 100:
        assert histogram.quantile(q) == np.quantile(values, q, method="inverted_cdf")


def test_quantiles_of_nothing_are_unknown():
    histogram = Histogram()
    assert histogram.quantiles([0.5, 0.99]) == [None, None]
    assert histogram.quantile(0.5) is histogram.mean is histogram.min is histogram.max is None
    assert (histogram.count, histogram.sum_ns, histogram.sum, histogram.overflow) == (0, 0, 0.0, 0)


@pytest.mark.parametrize("q", [-0.01, 1.01, math.nan])
def test_quantile_refuses_what_is_no_quantile(q):
    with pytest.raises(ValueError, match=r"0 \.\. 1"):
        Histogram().quantile(q)


def test_overflow_is_counted_and_infinite():
    histogram = Histogram()
    histogram.add(1.0, count=3)
    histogram.add(65520.0)
    assert histogram.overflow == 1
    assert histogram.quantiles([0.75, 0.76]) == [1.0, math.inf]
    assert histogram.max == math.inf
    assert histogram.sum_ns == 65_523 * 10**9


# Count and sum


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**12)), max_size=30))
def test_count_and_sum_are_exact(entries):
    histogram = Histogram()
    for nanoseconds, count in entries:
        histogram.add_ns(nanoseconds, count)
    assert histogram.count == sum(count for _, count in entries)
    assert histogram.sum_ns == sum(nanoseconds * count for nanoseconds, count in entries)
    assert all(count > 0 for _, count in histogram.to_pairs())
    if histogram.count:
        assert histogram.mean == float(Fraction(histogram.sum_ns, histogram.count * 10**9))


@given(st.floats(0, 1e9))
def test_seconds_are_summed_to_the_nearest_nanosecond(seconds):
    histogram = Histogram()
    histogram.add(seconds)
    assert abs(Fraction(histogram.sum_ns) - Fraction(seconds) * 10**9) <= Fraction(1, 2)


def test_add_refuses_what_would_spoil_count_or_sum():
    histogram = Histogram()
    with pytest.raises(ValueError, match="finite"):
        histogram.add(math.inf)
    with pytest.raises(ValueError, match="nanoseconds"):
        histogram.add_ns(-1)
    with pytest.raises(TypeError):
        histogram.add_ns(1.5)
    with pytest.raises(ValueError, match="count"):
        histogram.add(1.0, count=-1)
    with pytest.raises(TypeError):
        histogram.add(1.0, count=1.0)
    assert histogram == Histogram()


# Merging


def histogram_of(entries):
    histogram = Histogram()
    for nanoseconds, count in entries:
        histogram.add_ns(nanoseconds, count)
    return histogram


cases = st.lists(st.tuples(st.integers(0, 10**14), st.integers(1, 10**6)), max_size=12).map(
    lambda entries: (entries, histogram_of(entries))
)


@given(cases, cases, cases)
def test_merging_is_commutative_associative_and_the_same_as_adding_all(first, second, third):
    (a_entries, a), (b_entries, b), (c_entries, c) = first, second, third
    assert a + b == b + a
    assert (a + b) + c == a + (b + c) == histogram_of(a_entries + b_entries + c_entries)
    assert ((a + b) + c).count == a.count + b.count + c.count
    assert sum([a, b, c], Histogram()) == a + b + c
    assert a == histogram_of(a_entries), "adding must leave its operands as they were"
    a.merge(b)
    assert a == histogram_of(a_entries + b_entries)
    assert a.count == sum(count for _, count in a.to_pairs())


def test_merging_with_itself_doubles():
    histogram = histogram_of([(10, 1), (10**9, 2)])
    histogram.merge(histogram)
    assert histogram == histogram_of([(10, 2), (10**9, 4)])
    assert histogram.count == 6


def test_equality_is_of_bins_and_sum():
    one = histogram_of([(10**9, 1)])
    assert one != histogram_of([(10**9 + 1, 1)]), "the same bin, another sum"
    assert one != Histogram.from_pairs([(15 * OCTAVE + 1, 1)], 10**9), "the same sum, another bin"
    assert one != 1
    assert one.copy() == one and one.copy() is not one
    with pytest.raises(TypeError):
        hash(one)
    with pytest.raises(TypeError):
        one + 1


def test_repr_shows_what_it_holds():
    assert repr(Histogram()) == "<Histogram: no samples>"
    assert repr(histogram_of([(250_000_000, 4)])) == "<Histogram: 4 samples, 1 s, p50 0.25 s, p99 0.25 s>"


# Prometheus buckets


@given(
    st.lists(st.integers(0, 2**47), max_size=40),
    st.lists(st.floats(1e-6, 1e5), unique=True, max_size=10).map(sorted),
)
def test_buckets_are_those_of_brute_force(nanoseconds, bounds):
    histogram = histogram_of([(value, 1) for value in nanoseconds])
    values = [value_of(bin_of_ns(value)) for value in nanoseconds]
    expected = [(bound, sum(value <= bound for value in values)) for bound in bounds]
    assert histogram.to_buckets(bounds) == [*expected, (math.inf, len(values))]


def test_buckets_differ_from_the_samples_by_half_a_bin_at_most(samples):
    histogram = filled(samples)
    for bound, count in histogram.to_buckets()[:-1]:
        width = error_allowed(bound)
        assert (samples <= bound - width).sum() <= count <= (samples <= bound + width).sum()


def test_buckets_have_the_default_bounds_and_take_a_bin_on_a_bound():
    histogram = histogram_of([(0, 1), (10**9, 1), (10**9 + 10**6, 1), (10**14, 1)])
    buckets = histogram.to_buckets()
    assert [bound for bound, _ in buckets] == [*LATENCY_BOUNDS, math.inf]
    assert dict(buckets)[1.0] == 2 and dict(buckets)[3.0] == 3
    assert histogram.to_buckets([1e6]) == [(1e6, 3), (math.inf, 4)]
    assert histogram.to_buckets([]) == [(math.inf, 4)]
    assert LATENCY_BOUNDS[0] == 1e-4 and LATENCY_BOUNDS[-1] == 1e3


@pytest.mark.parametrize("bounds", [[1, 1], [2, 1], [1, math.inf], [math.nan]])
def test_buckets_refuse_bounds_that_do_not_ascend(bounds):
    with pytest.raises(ValueError, match="ascend"):
        Histogram().to_buckets(bounds)


# Pairs


@given(cases)
def test_pairs_round_trip(case):
    _, histogram = case
    pairs = histogram.to_pairs()
    assert pairs == sorted(pairs)
    twin = Histogram.from_pairs(pairs, histogram.sum_ns)
    assert twin == histogram and twin.count == histogram.count
    assert Histogram.from_pairs([list(pair) for pair in pairs], histogram.sum_ns) == histogram


@pytest.mark.parametrize(
    ("pairs", "sum_ns", "message"),
    [
        (None, 0, "pairs must be a list"),
        ({0: 1}, 0, "pairs must be a list"),
        ("01", 0, "pairs must be a list"),
        ([(0, 1), (1,)], 0, r"pairs\[1\] must be \(bin, count\)"),
        ([(0, 1), {1, 2}], 0, r"pairs\[1\] must be \(bin, count\)"),
        ([(0, 1), "12"], 0, r"pairs\[1\] must be \(bin, count\)"),
        ([(-1, 1)], 0, r"bin of pairs\[0\].*within 0 \.\. 31744, not -1"),
        ([(SLOTS, 1)], 0, r"bin of pairs\[0\].*not 31745"),
        ([(5, 1), (5, 1)], 0, r"bin of pairs\[1\], the bins ascending, must be within 6"),
        ([(5, 1), (4, 1)], 0, r"bin of pairs\[1\], the bins ascending, must be within 6"),
        ([(1.0, 1)], 0, r"bin of pairs\[0\].*not a float"),
        ([(True, 1)], 0, r"bin of pairs\[0\].*not a bool"),
        ([(10**5000, 1)], 0, r"bin of pairs\[0\].*not a longer number"),
        ([(1, 0)], 0, r"count of pairs\[0\] must be within 1"),
        ([(1, -3)], 0, r"count of pairs\[0\].*not -3"),
        ([(1, COUNT_MAX + 1)], 0, r"count of pairs\[0\].*not 9223372036854775808"),
        ([(1, "2")], 0, r"count of pairs\[0\].*not a str"),
        ([(1, True)], 0, r"count of pairs\[0\].*not a bool"),
        ([(1, 1)], -1, r"sum_ns must be within 0 .*not -1"),
        ([(1, 1)], 1.5, "sum_ns must be an integer"),
        ([(1, 1)], None, "sum_ns must be an integer"),
        ([(1, 1)], SUM_NS_MAX + 1, "sum_ns must be within"),
    ],
)
def test_from_pairs_says_what_is_wrong_and_where(pairs, sum_ns, message):
    with pytest.raises(ValueError, match=message):
        Histogram.from_pairs(pairs, sum_ns)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, SLOTS) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=20,
)
almost_pairs = st.lists(
    st.tuples(st.integers(-2, SLOTS + 2), st.integers(-2, 2**64)) | st.lists(anything, max_size=3), max_size=5
)


@settings(max_examples=300)
@given(anything | almost_pairs, anything | st.integers(-1, 2**128))
def test_from_pairs_raises_nothing_but_value_error(pairs, sum_ns):
    try:
        histogram = Histogram.from_pairs(pairs, sum_ns)
    except ValueError:
        return
    assert [tuple(pair) for pair in pairs] == histogram.to_pairs()
    assert histogram.sum_ns == sum_ns


# Dense blocks


def words(counts):
    return memoryview(np.array(counts, dtype=np.uint64).tobytes()).cast("Q")


@settings(max_examples=60)
@given(
    st.dictionaries(st.integers(0, 2500), st.integers(1, COUNT_MAX), max_size=20),
    st.integers(0, SLOTS - 2501),
    st.integers(0, 2**70),
)
def test_dense_blocks_are_the_pairs_they_hold(counts, first_bin, sum_ns):
    dense = [counts.get(offset, 0) for offset in range(2501)]
    pairs = sorted((first_bin + offset, count) for offset, count in counts.items())
    expected = Histogram.from_pairs(pairs, sum_ns)
    assert Histogram.from_dense(dense, first_bin, sum_ns=sum_ns) == expected
    assert Histogram.from_dense(words(dense), first_bin, sum_ns=sum_ns) == expected
    in_parts = Histogram()
    for start in range(0, 2501, 700):
        in_parts.add_dense(first_bin + start, words(dense)[start : start + 700])
    in_parts.add_dense(first_bin, [], sum_ns)
    assert in_parts == expected


def test_dense_blocks_add_to_what_is_there_and_may_be_padded():
    page = bytearray(8 * DENSE_WORDS)
    for bin, count in ((0, 1), (31, 2), (32, 3), (OCTAVE, 4), (BINS - 1, 5), (OVERFLOW, 6)):
        memoryview(page).cast("Q")[bin] = count
    histogram = Histogram()
    for _ in range(2):
        histogram.add_dense(0, memoryview(page).cast("Q"), sum_ns=7)
    assert histogram.to_pairs() == [(0, 2), (31, 4), (32, 6), (OCTAVE, 8), (BINS - 1, 10), (OVERFLOW, 12)]
    assert (histogram.count, histogram.sum_ns, histogram.overflow) == (42, 14, 12)
    last_octave = memoryview(page).cast("Q")[BINS:]
    assert Histogram.from_dense(last_octave, BINS, sum_ns=0).to_pairs() == [(OVERFLOW, 6)]


def test_dense_blocks_take_numpys_words():
    counts = np.zeros(100, dtype=np.uint64)
    counts[3] = 9
    for block in (counts, memoryview(counts), counts.tolist()):
        histogram = Histogram.from_dense(block, 10, sum_ns=1)
        assert histogram.to_pairs() == [(13, 9)]
        assert type(histogram.count) is int


@pytest.mark.parametrize(
    ("first_bin", "counts", "sum_ns", "message"),
    [
        (-1, [1], 0, "a bin must be within 0"),
        (SLOTS, [1], 0, "a bin must be within 0"),
        (OVERFLOW, [0, 1], 0, "a bin with samples must be within 0 .. 31744, not 31745"),
        (1, [0] * DENSE_WORDS, 0, "32768 counts from bin 1 on"),
        (0, [1, -1], 0, "the count of bin 1 must be within 1"),
        (7, [1, 0, COUNT_MAX + 1], 0, "the count of bin 9 must be within 1"),
        (0, words([1, 2**64 - 1]), 0, "the count of bin 1 must be within 1"),
        (0, [1.0], 0, "the count of bin 0 must be an integer"),
        (0, [1], -1, "sum_ns must be within"),
        (0, memoryview(b"12345678"), 0, "unsigned 64-bit words"),
        (0, memoryview(bytes(16)).cast("q"), 0, "unsigned 64-bit words"),
        (0, memoryview(bytes(16)).cast("B").cast("Q", (2, 1)), 0, "unsigned 64-bit words"),
    ],
)
def test_dense_blocks_are_refused_whole(first_bin, counts, sum_ns, message):
    histogram = histogram_of([(5, 5)])
    with pytest.raises(ValueError, match=message):
        histogram.add_dense(first_bin, counts, sum_ns)
    assert histogram == histogram_of([(5, 5)])


def test_a_histogram_of_every_bin_keeps_all_of_them():
    histogram = Histogram.from_dense([1] * SLOTS, sum_ns=0)
    assert histogram.count == len(histogram.to_pairs()) == SLOTS
    for rank in random.Random(3).sample(range(1, SLOTS + 1), 20):
        q = (rank - 0.5) / SLOTS  # Half a sample away from where rounding could change the rank.
        assert histogram.quantile(q) == value_of(rank - 1)


def test_the_example_in_the_docstring_runs():
    failed, attempted = doctest.testmod(module)
    assert attempted and not failed
