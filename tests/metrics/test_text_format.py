"""The exposition text equals that of prometheus_client, byte for byte."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString
from support.node.broken_files import exposition

from goodput.histograms.native_histogram import NativeHistogram
from goodput.metrics import CATALOGUE, Families
from goodput.metrics.openmetrics import OpenMetricsWriter
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter, number

STEPS = "goodput_step_duration_seconds"
OURS = [metric for metric in CATALOGUE.values() if metric.exposer == "node"]
BUCKETS = [("0.1", 1), ("2.5", 7), ("+Inf", 12_345_678)]
texts = st.text(st.characters(codec="utf-8"), max_size=8)


def fill(families: Families, metric, values: list[str], value: float) -> None:
    labels = dict(zip(metric.labels, values, strict=True))
    if metric.kind == "histogram":
        families.add_histogram(metric.name, labels, BUCKETS, value)
    else:
        families.add(metric.name, labels, value)


@given(st.floats())
def test_floats_are_formatted_as_in_go(value):
    assert number(value) == floatToGoString(value)


@given(st.integers(-(2**70), 2**70))
def test_integers_are_formatted_as_in_go(value):
    assert number(value) == floatToGoString(value)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_arbitrary_families_match_prometheus_client(data):
    writer = TextWriter()
    for _ in range(2):  # The second time with the cache of the first.
        families = Families("node")
        for metric in data.draw(st.lists(st.sampled_from(OURS), max_size=4)):
            fill(families, metric, [data.draw(texts) for _ in metric.labels], data.draw(st.floats()))
        assert writer.write([families]) == exposition(families)


# Few, so that series and values come back: equal numbers of different types, and those with a text of their own.
VALUES = (
    0,
    0.0,
    -0.0,
    False,
    1,
    1.0,
    True,
    math.nan,
    math.inf,
    999_999,
    1e6,
    2**53,
    2.0**53,
    2**53 + 1,
    -1e7,
    1e-7,
)
RUNS = st.lists(st.tuples(st.sampled_from(("a", 'b "\\\n')), st.sampled_from(VALUES)), max_size=3)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(RUNS, RUNS), max_size=4))
def test_cached_text_is_that_of_a_new_writer(scrapes):
    """Of series that stay the same, change, come and go between scrapes."""
    writers = [TextWriter(), OpenMetricsWriter(), ProtobufWriter()]
    for gauges, histograms in scrapes:
        families = Families("node")
        for run, value in gauges:
            families.add("goodput_rank_step", {"run": run, "rank": "0"}, value)
        for run, value in histograms:
            exemplar = (("step", "1"),), 0.2, 10**18
            labels, native = {"run": run, "rank": "0"}, NativeHistogram([(3, 2)], 1.5)
            families.add_histogram(STEPS, labels, [("0.1", 1), ("+Inf", 2)], value, native, exemplar)
        for writer in writers:
            assert writer.write([families]) == type(writer)().write([families])
        assert writers[0].write([families]) == exposition(families)


def test_whole_catalogue_matches_prometheus_client():
    families, again = Families("node"), Families("node")
    for metric in OURS:
        fill(families, metric, [f'{label} "\\\n' for label in metric.labels], 1_234_567.5)
        fill(again, metric, [f'{label} "\\\n' for label in metric.labels], 2)
    writer = TextWriter()
    assert writer.write([families]) == exposition(families)
    assert writer.write([again]) == exposition(again) != exposition(families)


def test_family_of_two_collectors_is_written_once():
    parts = []
    for device in ("b", "a"):
        parts.append(Families("node"))
        parts[-1].add("goodput_network_up", {"device": device}, 1)
    whole = Families("node")
    for device in ("b", "a"):
        whole.add("goodput_network_up", {"device": device}, 1)
    assert TextWriter().write(parts) == exposition(whole)


def test_cache_forgets_series_that_are_gone():
    writer = TextWriter()
    for run in range(50):
        families = Families("node")
        families.add("goodput_rank_step", {"run": f"r{run}", "rank": "0"}, run)
        families.add_histogram("goodput_step_duration_seconds", {"run": f"r{run}", "rank": "0"}, BUCKETS, 1)
        writer.write([families])
        assert [len(one.known) for one in writer._written.values()] == [1, 1]


def test_changed_buckets_are_not_read_from_the_cache():
    writer = TextWriter()
    for buckets in (BUCKETS, [("1.0", 3), ("+Inf", 4)], [("5.0", 3), ("+Inf", 4)]):
        families = Families("node")
        families.add_histogram("goodput_step_duration_seconds", {"run": "r", "rank": "0"}, buckets, 9.5)
        assert writer.write([families]) == exposition(families)


def test_families_that_grow_between_scrapes_are_written_anew():
    families, writer = Families("node"), TextWriter()
    for rank in "01":
        families.add("goodput_rank_step", {"run": "r", "rank": rank}, 1)
        assert writer.write([families]) == exposition(families)
