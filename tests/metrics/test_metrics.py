"""The catalogue of series: names that Prometheus and OpenMetrics can tell apart."""

from collections import Counter

import pytest

from goodput.metrics import CATALOGUE, Families


def test_no_two_families_of_one_exposer_share_a_name():
    """A counter's family has its name without `_total`; a gauge of that name would be of the same family."""
    families = Counter((metric.exposer, name.removesuffix("_total")) for name, metric in CATALOGUE.items())
    assert [name for name, count in families.items() if count > 1] == []


def test_only_counters_are_totals_and_no_label_is_a_step():
    for name, metric in CATALOGUE.items():
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert name.startswith("goodput_") and metric.help.endswith("."), name
        assert "step" not in metric.labels, name


def test_row_is_added_as_its_labels_are():
    one, other = Families("node"), Families("node")
    labels = {"gpu": "GPU-1\n", "kind": "total"}
    one.add("goodput_gpu_memory_bytes", labels, 5.0)
    other.add_row("goodput_gpu_memory_bytes", other.row_of("goodput_gpu_memory_bytes", labels), 5.0)
    assert one.rows == other.rows == {"goodput_gpu_memory_bytes": [(("GPU-1?", "total"), 5.0)]}
    with pytest.raises(KeyError, match="declared"):
        other.row_of("goodput_gpu_memory_bytes", {"gpu": "GPU-1"})
    with pytest.raises(KeyError, match="declared"):
        other.row_of("goodput_availability_ratio", {"run": "r1"})
