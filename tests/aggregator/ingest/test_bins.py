"""Bins of many durations are those of each, with the rounding of IEEE binary16 on both sides of its least normal number."""

import random
from collections import Counter

import numpy as np
import pytest
from support.seeds import cases

from goodput.aggregator.ingest.recent.bins import BIN_BITS, count_bins, fp16_bins
from goodput.histograms.histogram import bin_of_ns


def test_bins_of_many_durations_are_those_of_each():
    rng = random.Random(1)
    steps = [round(step * 1e9 / 2**25) + near for step in range(0, 4096, 5) for near in (-1, 0, 1)]
    normal = [61_035 + near for near in range(-3, 4)]
    largest = [65_519_999_999_999, 65_520_000_000_000, 10**16, (1 << 62) - 1]
    some = [int(10 ** rng.uniform(0, 15)) for _ in range(20_000)]
    durations = [0, 1, *(ns for ns in steps if ns > 0), *normal, *largest, *some]
    assert fp16_bins(np.array(durations)).tolist() == list(map(bin_of_ns, durations))


def test_bins_keep_the_shape():
    durations = np.arange(0, 120_000, 10_000).reshape(3, 4)
    assert np.array_equal(fp16_bins(durations.T), fp16_bins(durations).T)


@pytest.mark.parametrize("seed", cases(5))
def test_counted_bins_are_those_of_each_duration(seed):
    """But for phases without time, and columns without a place."""
    rng = np.random.default_rng(seed)
    times = np.exp(rng.uniform(0, 34, (200, 6))).astype(np.int64) * (rng.random((200, 6)) < 0.8)
    times[0], times[1] = (0, 61_035, 61_036, 65_519_999_999_999, 65_520_000_000_000, (1 << 62) - 1), 0
    places = [0, 5, -1, 63, 2, 1]
    for values in (times, np.asfortranarray(times), times[:, ::-1], times[:0]):
        expected = Counter(
            place << BIN_BITS | bin_of_ns(ns)
            for row in values.tolist()
            for at, (place, ns) in enumerate(zip(places, row, strict=True))
            if place >= 0 and (ns or not at)
        )
        keys, counts = count_bins(values, places)
        assert list(zip(keys.tolist(), counts.tolist(), strict=True)) == sorted(expected.items())
