"""The exposition format by Accept header: what scrapers send, and what nobody should."""

import pytest

from goodput.metrics.negotiation import LENGTH_MAX, negotiated
from goodput.metrics.openmetrics import OpenMetricsWriter
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter

OURS = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
OPEN_METRICS = "application/openmetrics-text;version=1.0.0"


@pytest.mark.parametrize(
    "accept",
    [
        OURS,
        ProtobufWriter.content_type,
        # Prometheus 2.42, 2.50 and 3.5 with native histograms.
        f"{OURS},{OPEN_METRICS};q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        f"{OURS};q=0.6,{OPEN_METRICS};escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
        f"text/plain;q=0.5, {OURS};q=0.501",
        f"{OURS}, text/plain",
        f"{OURS.replace('delimited', 'text')}, {OURS.replace('delimited', 'compact-text')}, {OURS};q=0.1",
        OURS.upper(),
        OURS.replace("=delimited", ' = "delimited" '),
        f"text/plain;q=high, {OURS};q=0.2",
    ],
)
def test_protobuf_is_preferred(accept):
    assert negotiated(accept) is ProtobufWriter


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/*",
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        f"{OPEN_METRICS},text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/vnd.google.protobuf",
        OURS.replace("delimited", "text"),
        OURS.replace("delimited", "compact-text"),
        OURS.replace("MetricFamily", "Metric"),
        OURS.replace("proto=", "pr="),
        f"{OURS};q=0",
        f"{OURS};q=0, text/plain;q=0",
        *(f"{OURS};q={q}" for q in ("", "x", "-1", "2", "1.1", "nan", "inf", "1e0", "0.1234", "٠.٥")),
        f"text/plain, {OURS}",
        f"*/*;q=0.9, {OURS};q=0.5",
        f"{OURS},{'x' * LENGTH_MAX}",
        "," * LENGTH_MAX + OURS,
        ";;;=,;q=,=;q=1,\x00",
        "application/json",
    ],
)
def test_text_is_the_fallback(accept):
    assert negotiated(accept) is TextWriter


@pytest.mark.parametrize(
    "accept",
    [
        OPEN_METRICS,
        "application/openmetrics-text",
        # Prometheus 2.42 and 3.5 without native histograms.
        f"{OPEN_METRICS},application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        f"{OPEN_METRICS};escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
    ],
)
def test_openmetrics_is_for_who_offers_it(accept):
    assert negotiated(accept, has_openmetrics=True) is OpenMetricsWriter
    assert negotiated(accept) is TextWriter
    assert negotiated(f"{OURS};q=1,{accept};q=0.4", has_openmetrics=True) is ProtobufWriter


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "application/openmetrics-text;version=0.0.1", f"text/plain,{OPEN_METRICS};q=0.9", "text/*"],
)
def test_others_do_not_get_openmetrics(accept):
    assert negotiated(accept, has_openmetrics=True) is TextWriter
