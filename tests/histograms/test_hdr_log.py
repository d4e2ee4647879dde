"""Conversion to hdrhistogram, read back by hdrhistogram's own log reader."""

import io
import math
import sys

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from goodput.histograms.hdr_log import to_hdr, write_log
from goodput.histograms.histogram import BINS, COUNT_MAX, OCTAVE, Histogram, value_of

QUANTILES = (0.001, 0.1, 0.5, 0.9, 0.99, 0.999)


def lognormal(seed, count=3000, mean_seconds=0.25):
    histogram = Histogram()
    for seconds in np.random.default_rng(seed).lognormal(math.log(mean_seconds), 1, count):
        histogram.add_ns(round(seconds * 1e9))
    return histogram


def read_log(path):
    reader = HistogramLogReader(str(path), HdrHistogram(1, 2**40, 3))
    try:
        found = iter(reader.get_next_interval_histogram, None)
        return [(h.get_start_time_stamp() / 1e3, h.get_end_time_stamp() / 1e3, h.get_tag(), h) for h in found]
    finally:
        reader.input_file.close()


def recorded(hdr):
    """The samples of an hdrhistogram as {lowest equivalent nanosecond: count}."""
    return {
        hdr.get_lowest_equivalent_value(item.value_iterated_to): item.count_at_value_iterated_to
        for item in hdr.get_recorded_iterator()
    }


def assert_same_samples(hdr, histogram):
    expected = to_hdr(histogram)
    assert hdr.get_total_count() == histogram.count
    assert recorded(hdr) == recorded(expected)


def test_bins_keep_their_count_and_three_digits():
    # Far enough apart above 61 us that no two share a bucket of hdrhistogram's.
    bins = [*range(OCTAVE, BINS, 3), BINS - 1]
    histogram = Histogram()
    for bin in bins:
        for _ in range(bin % 3 + 1):
            histogram.add_ns(round(value_of(bin) * 1e9))
    pairs = histogram.to_pairs()
    assert pairs == [(bin, bin % 3 + 1) for bin in bins]
    found = sorted(recorded(to_hdr(histogram)).items())
    assert [count for _, count in found] == [count for _, count in pairs]
    for (bin, _), (value_ns, _) in zip(pairs, found, strict=True):
        expected_ns = value_of(bin) * 1e9
        assert abs(value_ns - expected_ns) <= max(expected_ns * 2**-10, 0.5)


def test_quantiles_survive():
    histogram = lognormal(1)
    hdr = to_hdr(histogram)
    assert hdr.get_total_count() == histogram.count
    for q in QUANTILES:
        assert hdr.get_value_at_percentile(100 * q) == pytest.approx(
            histogram.quantiles([q])[0] * 1e9, rel=1e-3
        )


def test_overflow_is_recorded_at_its_lower_end_and_nothing_at_zero():
    histogram = Histogram()
    for nanoseconds in (10**15, 10**15, *[0] * 5):
        histogram.add_ns(nanoseconds)
    hdr = to_hdr(histogram)
    assert hdr.get_total_count() == 7
    assert recorded(hdr) == {0: 5, hdr.get_lowest_equivalent_value(65_520 * 10**9): 2}
    assert to_hdr(Histogram()).get_total_count() == 0


def test_log_is_read_back_by_hdrhistogram(tmp_path):
    first, second, third = lognormal(3), lognormal(4, mean_seconds=4000), Histogram()
    third.add_ns(1500)
    intervals = [
        (1_700_000_060.0, 1_700_000_120.25, "step", second),
        (1_700_000_000.5, 1_700_000_060.0, "step", first),
        (1_700_000_060.0, 1_700_000_120.25, "loader", third),
        (1_700_000_180.0, 1_700_000_180.0, "h2d", Histogram()),
    ]
    path = tmp_path / "steps.hlog"
    with path.open("w", encoding="utf-8") as file:
        write_log(file, intervals)
    found = read_log(path)
    assert [interval[:3] for interval in found] == sorted(
        (interval[:3] for interval in intervals), key=lambda interval: interval[0]
    )
    for (_, _, _, hdr), histogram in zip(found, (first, second, third, Histogram()), strict=True):
        assert_same_samples(hdr, histogram)


def test_log_has_the_header_and_the_maximum_in_milliseconds():
    histogram = Histogram()
    histogram.add_ns(12_500_000)
    file = io.StringIO()
    write_log(file, [(0.0, 10.0, "loader", histogram)])
    lines = file.getvalue().splitlines()
    assert lines[0] == "#[Histogram log format version 1.3]"
    assert lines[1] == "#[StartTime: 0.000000 (seconds since epoch)]"
    assert lines[2].startswith('"StartTimestamp","Interval_Length","Interval_Max"')
    tag, start, length, max_ms, payload = lines[3].split(",")
    assert (tag, start, length) == ("Tag=loader", "0.000000", "10.000000")
    assert float(max_ms) == pytest.approx(12.5, rel=1e-3)
    assert HdrHistogram.decode(payload).get_total_count() == 1
    assert len(lines) == 4


def test_times_from_zero_and_an_empty_log_are_read_back(tmp_path):
    path = tmp_path / "run.hlog"
    with path.open("w", encoding="utf-8") as file:
        write_log(file, [(5.0, 9.0, "b", lognormal(6, 10)), (0.0, 5.0, "a", lognormal(5, 10))])
    assert [interval[:3] for interval in read_log(path)] == [(0.0, 5.0, "a"), (5.0, 9.0, "b")]
    with path.open("w", encoding="utf-8") as file:
        write_log(file, [])
    assert read_log(path) == []


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ((-1.0, 1.0, "a"), "times must satisfy"),
        ((2.0, 1.0, "a"), "times must satisfy"),
        ((math.nan, 1.0, "a"), "times must satisfy"),
        ((0.0, math.inf, "a"), "times must satisfy"),
        ((0.0, 1.0, "a,b"), "without commas or white space"),
        ((0.0, 1.0, "a b"), "without commas or white space"),
        ((0.0, 1.0, "a\n"), "without commas or white space"),
        ((0.0, 1.0, ""), "without commas or white space"),
    ],
)
def test_unreadable_interval_is_rejected(interval, message):
    file = io.StringIO()
    with pytest.raises(ValueError, match=message):
        write_log(file, [(0.0, 1.0, "fine", Histogram()), (*interval, Histogram())])
    assert file.getvalue() == ""


def test_too_many_samples_are_rejected():
    histogram = Histogram()
    histogram.count = COUNT_MAX + 1
    with pytest.raises(ValueError, match="2\\*\\*63 - 1"):
        to_hdr(histogram)


def test_a_missing_hdrhistogram_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "hdrh.histogram", None)
    file = io.StringIO()
    with pytest.raises(ImportError, match=r"pip install goodput-telemetry\[hdr\]"):
        write_log(file, [(0.0, 1.0, "step", Histogram())])
    assert file.getvalue() == ""
