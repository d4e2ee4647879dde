"""The series of one rank: values worked by hand, and buckets against brute force over the bins."""

import array
import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.node.node_rank import Rank
from support.node.node_tree import MS, samples

from goodput.histograms.histogram import BINS, LATENCY_BOUNDS, OCTAVE, SLOTS, STEP_BOUNDS, value_of
from goodput.histograms.native_histogram import NativeHistogram, bucket_of_bin
from goodput.metrics import Families
from goodput.rank_page import page
from goodput_exporters.collectors.ranks.bucket_counts import Binning
from goodput_exporters.collectors.ranks.rank_series import sum_of_bins


def blocks_of(bins: dict[int, int]) -> list[tuple[int, memoryview]]:
    """Blocks as a page has them: whole octaves, the last with room beyond the overflow bin."""
    blocks = []
    for first in sorted({bin // OCTAVE * OCTAVE for bin in bins}):
        words = array.array("Q", bytes(8 * OCTAVE))
        for bin, count in bins.items():
            if first <= bin < first + OCTAVE:
                words[bin - first] = count
        blocks.append((first, memoryview(words)))
    return blocks


counts = st.dictionaries(st.integers(0, SLOTS - 1), st.integers(1, 1 << 40), max_size=30)


def buckets_expected(bins: dict[int, int], bounds) -> list[int]:
    """Samples up to each bound, by brute force."""
    return [
        sum(count for bin, count in bins.items() if value_of(bin) <= bound) for bound in (*bounds, math.inf)
    ]


def check_buckets(bins: dict[int, int]) -> None:
    for bounds in (LATENCY_BOUNDS, STEP_BOUNDS):
        classic, native = Binning(bounds).counts(blocks_of(bins))
        assert list(accumulate(classic)) == buckets_expected(bins, bounds)
        one_by_one = [(bucket_of_bin(bin), count) for bin, count in bins.items()]
        assert NativeHistogram(native, 0.0).buckets() == NativeHistogram(one_by_one, 0.0).buckets()


@given(counts)
def test_buckets_are_those_of_brute_force(bins):
    check_buckets(bins)


@given(counts)
def test_the_sum_is_bin_values_times_counts(bins):
    expected = sum((65520 if bin == BINS else value_of(bin)) * count for bin, count in bins.items())
    assert sum_of_bins(blocks_of(bins)) == pytest.approx(expected, rel=1e-12)


def test_each_bound_cuts_between_the_right_bins():
    """Every finite bin once: exhaustive, so that no bound is off by one bin."""
    bins = dict.fromkeys(range(SLOTS), 1)
    check_buckets(bins)


def test_values_of_a_rank(tree, ranks, clock):
    rank = Rank(tree / "pages", stage=2, device_uuid="GPU-7")
    rank.step({"loader": 200 * MS, "forward": 300 * MS}, samples=64)
    rank.step({"loader": 2 * MS, "forward": 300 * MS}, samples=64)
    rank.enter("communication")
    rank.words[page.W_COST] = 1_500_000
    ranks.poll()
    clock.seconds = 3.802
    families = Families("node")
    ranks.collect(families)
    found = samples(families)
    of_rank = ("0", "r1")
    assert (
        found["goodput_rank_info", ("1", "NVIDIA H100 80GB HBM3", "GPU-7", "dp0", "n0", "0", "r1", "2")] == 1
    )
    assert found["goodput_rank_alive", of_rank] == 1
    assert found["goodput_rank_beat_age_seconds", of_rank] == pytest.approx(3.0)
    assert found["goodput_rank_phase_age_seconds", ("communication", *of_rank)] == pytest.approx(3.0)
    assert found["goodput_rank_step", of_rank] == 1
    assert found["goodput_steps_total", of_rank] == 2
    assert found["goodput_samples_total", of_rank] == 128
    assert found["goodput_phase_seconds_total", ("host", "loader", *of_rank)] == pytest.approx(0.202)
    assert ("goodput_phase_seconds_total", ("host", "backward", *of_rank)) not in found
    assert found["goodput_sdk_cost_seconds_total", of_rank] == pytest.approx(0.0015)
    assert found["goodput_sdk_dropped_total", ("0", "r1", "error")] == 0
    # Two loader phases: 2 ms and 200 ms.
    loader = {le: found["goodput_phase_duration_seconds_bucket", (le, "loader", *of_rank)] for le in BOUNDS}
    assert [loader[le] for le in ("0.001", "0.003", "0.1", "0.3", "+Inf")] == [0, 1, 1, 2, 2]
    assert found["goodput_phase_duration_seconds_sum", ("loader", *of_rank)] == pytest.approx(0.202)
    assert found["goodput_step_duration_seconds_count", of_rank] == 2
    assert found["goodput_step_duration_seconds_sum", of_rank] == pytest.approx(0.802, rel=2**-11)
    assert not any(name.endswith("_bucket") and "backward" in labels for name, labels in found)


BOUNDS = ("0.001", "0.003", "0.1", "0.3", "+Inf")


def test_a_dead_rank_has_totals_and_no_ages(tree, ranks):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    (tree / "proc" / str(rank.identity["pid"]) / "stat").unlink()
    ranks.poll()
    families = Families("node")
    ranks.collect(families)
    found = samples(families)
    assert found["goodput_rank_alive", ("0", "r1")] == 0 and found["goodput_steps_total", ("0", "r1")] == 1
    assert not any("_age_seconds" in name for name, _ in found)


def test_background_time_is_apart(tree, ranks):
    rank = Rank(tree / "pages")
    rank.words[page.W_BACKGROUND_TOTALS + 1] = 5 * MS
    ranks.poll()
    families = Families("node")
    ranks.collect(families)
    found = samples(families)
    assert found["goodput_background_phase_seconds_total", ("loader", "0", "r1")] == pytest.approx(0.005)
    assert ("goodput_phase_seconds_total", ("host", "loader", "0", "r1")) not in found


def test_scrape_between_two_polls_is_fresh(tree, ranks):
    """It takes nothing from the next poll."""
    rank = Rank(tree / "pages")
    ranks.poll()
    rank.step({"forward": MS})
    families = Families("node")
    ranks.collect(families)
    assert samples(families)["goodput_steps_total", ("0", "r1")] == 1
    assert [len(report.steps) for report in ranks.poll()] == [1]
