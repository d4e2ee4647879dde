"""A run's histograms of all its steps: against brute force over the times, whatever minutes they are from."""

import random
from bisect import bisect_left
from itertools import pairwise

import pytest
from support.account.account_history import Process
from support.aggregator.reports import rank_report
from support.aggregator.step_times import START, run_of, times_of
from support.seeds import cases

from goodput.aggregator.ingest.recent.recent_times import STEP
from goodput.aggregator.ingest.recent.run_histograms import BOUNDS
from goodput.aggregator.ingest.store import Store
from goodput.histograms.histogram import OVERFLOW_SECONDS, bin_of_ns, value_of
from goodput.histograms.native_histogram import NativeHistogram, bucket_of_bin


def check(found, times: list[int]) -> None:
    bins = [bin_of_ns(one) for one in times]
    for (label, count), bound in zip(found.buckets, BOUNDS, strict=True):
        assert float(label) == bound and count == sum(value_of(bin) <= bound for bin in bins), label
    seconds = sum(min(value_of(bin), OVERFLOW_SECONDS) for bin in bins)
    assert found.native.buckets() == NativeHistogram([(bucket_of_bin(bin), 1) for bin in bins], 0.0).buckets()
    assert (found.native.count, found.native.sum_seconds) == (len(times), seconds)


@pytest.mark.parametrize("seed", cases(3))
def test_histograms_are_those_of_brute_force(seed):
    """Steps of ten minutes, of which the last five are kept by minute; some pushes come twice."""
    rng, store = random.Random(seed), Store()
    processes = run_of(2, 400, rng)
    for one in processes:
        at = 0
        while at < len(one.rows):
            size = rng.randint(1, 60)
            for _ in range(rng.randint(1, 2)):
                store.merge(rank_report(one, rows=one.rows[at : at + size]), one.now_ns)
            if rng.random() < 0.3:
                store.recent["r1"].quantiles(one.now_ns)
            at += size
    found = store.recent["r1"].histograms()
    want = times_of(processes)
    assert found.keys() == want.keys() == {STEP, "forward", "loader"}
    for name, times in want.items():
        check(found[name], times)


def test_late_steps_and_very_long_ones_count():
    store, one, late = Store(), Process(0, 1, START, world_size=2), Process(1, 1, START, world_size=2)
    one.steps(20, forward=70_000)
    late.steps(5, forward=1e-8).steps(5, forward=0.3)
    for process in (one, late):
        store.merge(rank_report(process), one.now_ns)
    check(store.recent["r1"].histograms()[STEP], times_of([one, late])[STEP])


def test_bounds_are_ten_to_a_factor_of_ten():
    assert len(BOUNDS) == 61 and list(BOUNDS) == sorted(BOUNDS)
    assert all(BOUNDS[i + 10] == pytest.approx(10 * BOUNDS[i]) for i in range(51))
    assert all(1.2 < b / a < 1.3 for a, b in pairwise(BOUNDS))
    assert bisect_left(BOUNDS, 0.5) == BOUNDS.index(0.5)
