"""The exposition text equals that of prometheus_client, byte for byte."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString
from support.node.broken_files import exposition

from goodput.metrics import CATALOGUE, Families
from goodput.metrics.text_format import TextWriter, number

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
        assert len(writer._known) == 2


def test_changed_buckets_are_not_read_from_the_cache():
    writer = TextWriter()
    for buckets in (BUCKETS, [("1.0", 3), ("+Inf", 4)], [("5.0", 3), ("+Inf", 4)]):
        families = Families("node")
        families.add_histogram("goodput_step_duration_seconds", {"run": "r", "rank": "0"}, buckets, 9.5)
        assert writer.write([families]) == exposition(families)
