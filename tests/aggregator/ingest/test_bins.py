"""Bins of many durations are those of each, with the rounding of IEEE binary16 on both sides of its least normal number."""

import random

import numpy as np

from goodput.aggregator.ingest.recent.bins import fp16_bins
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
