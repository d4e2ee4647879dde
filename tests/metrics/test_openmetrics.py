"""OpenMetrics by the official parser of prometheus_client, and the exemplars of histograms."""

from __future__ import annotations

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_families

from goodput.metrics import CATALOGUE, Exemplar, Families
from goodput.metrics.openmetrics import LABEL_CHARACTERS_MAX, OpenMetricsWriter
from goodput.metrics.text_format import TextWriter

STEPS = "goodput_step_duration_seconds"
OF_RANK = {"run": "r", "rank": "0"}
BUCKETS = [("0.1", 1), ("0.25", 1), ("2.5", 7), ("+Inf", 12)]


def written(families: Families) -> str:
    return OpenMetricsWriter().write([families]).decode()


def samples(families: Families) -> list[Any]:
    """The parser refuses what the specification does."""
    return [sample for family in parsed_families(written(families)) for sample in family.samples]


def with_exemplar(value: float, *labels: tuple[str, str]) -> Families:
    families = Families("node")
    exemplar = Exemplar(labels, value, 1_700_000_000_250_000_000)
    families.add_histogram(STEPS, OF_RANK, BUCKETS, 9.5, exemplar=exemplar)
    return families


def exemplars(families: Families) -> dict[str, Any]:
    """By bucket."""
    return {one.labels["le"]: one.exemplar for one in samples(families) if one.exemplar is not None}


def test_the_agents_catalogue_is_valid():
    """With labels that have to be escaped; the lines are those of the Prometheus format."""
    families = Families("node")
    for metric in (one for one in CATALOGUE.values() if one.exposer == "node"):
        labels = {name: f'{name} "\\' for name in metric.labels}
        if metric.kind == "histogram":
            families.add_histogram(metric.name, labels, BUCKETS, 9.5)
        else:
            families.add(metric.name, labels, 1_234_567.5)
    totals = {one.value for one in samples(families) if one.name.endswith("_total")}
    assert totals == {1_234_567.5}
    lines, text = (body.split("\n") for body in (written(families), TextWriter().write([families]).decode()))
    assert lines[-2:] == ["# EOF", ""]
    assert [one for one in lines if one[:1] != "#"] == [one for one in text if one[:1] != "#"]


def test_exemplar_is_on_its_bucket():
    found = exemplars(with_exemplar(1.5, ("step", "41"), ("deep_look", 'a"b\\c')))
    assert found.keys() == {"2.5"}
    one = found["2.5"]
    assert (one.labels, one.value) == ({"step": "41", "deep_look": "a?b?c"}, 1.5)
    assert float(one.timestamp) == 1_700_000_000.25
    assert "2.5" in exemplars(with_exemplar(2.5)) and "+Inf" in exemplars(with_exemplar(99.0))


def test_exemplar_is_on_a_bucket_with_observations():
    def of(buckets: list[tuple[str, int]]) -> dict[str, Any]:
        families = Families("node")
        families.add_histogram(STEPS, OF_RANK, buckets, 9.5, exemplar=((("step", "41"),), 0.1, 10**18))
        return exemplars(families)

    assert of([("0.1", 0), ("0.25", 3), ("+Inf", 3)]).keys() == {"0.25"}, "a bin may round to the next bucket"
    assert of([("0.1", 0), ("0.25", 0), ("+Inf", 0)]) == {}


def test_labels_have_at_most_128_characters():
    (one,) = exemplars(with_exemplar(1.5, ("step", "41"), ("deep_look", "é" * 300))).values()
    assert sum(len(name) + len(value) for name, value in one.labels.items()) == LABEL_CHARACTERS_MAX
    assert one.labels["step"] == "41"


def test_other_formats_have_no_exemplars():
    text = TextWriter().write([with_exemplar(1.5, ("step", "41"))]).decode()
    assert "step=" not in text and text.count("\n") == 2 + len(BUCKETS) + 2
