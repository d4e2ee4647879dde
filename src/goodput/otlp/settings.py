"""Where and how often to export, and the command-line options for it; needs no OpenTelemetry."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from goodput.access.options import service_url

PATH = "/v1/metrics"
INTERVAL_SECONDS = 60.0  # OpenTelemetry's own default
INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"  # in milliseconds


class OtlpSettings(NamedTuple):
    url: str
    interval_seconds: float = INTERVAL_SECONDS
    cluster: str = ""
    instance: str = ""  # of several on one host


class Samples(NamedTuple):
    """What /metrics shows, as rows of goodput.metrics.Families: each part is rendered by itself."""

    unix_ns: int  # when they were collected
    parts: list[Mapping[str, list[tuple]]]


Collect = Callable[[], Samples]


def add_otlp_options(add, seconds: Callable[[str], float]) -> None:
    """Add --otlp and what belongs to it; `seconds` is the argparse type of the interval."""
    add("--otlp", metavar="URL", type=otlp_url,
        help="also export all series as OTLP metrics to this receiver, such as http://collector:4318 (/v1/metrics is "
        "appended); headers, TLS, timeout, compression and further resource attributes by OpenTelemetry's variables "
        "OTEL_EXPORTER_OTLP_* and OTEL_RESOURCE_ATTRIBUTES (default: none)")  # fmt: skip
    add("--otlp-interval", metavar="SECONDS", type=seconds, default=None,
        help=f"time between exports (default: ${INTERVAL_VARIABLE}, in milliseconds, else {INTERVAL_SECONDS:g})")  # fmt: skip
    add("--otlp-cluster", metavar="NAME", default=os.environ.get("GOODPUT_CLUSTER") or None,
        help="the resource attribute goodput.cluster of what is exported (default: $GOODPUT_CLUSTER, else none)")  # fmt: skip


def otlp_url(text: str) -> str:
    """An argparse type: the URL to post to, from a base URL or one that ends in /v1/metrics."""
    parts = service_url(text, "use OTEL_EXPORTER_OTLP_HEADERS", "http://collector:4318")
    return text if parts.path.endswith(PATH) else text.rstrip("/") + PATH


def settings_of(arguments) -> OtlpSettings | None:
    """The settings of the options above, None without --otlp. Raises ValueError for a useless combination."""
    if arguments.otlp is None:
        if arguments.otlp_interval is not None:
            raise ValueError("--otlp-interval needs --otlp")
        return None
    seconds = arguments.otlp_interval or _interval_of_environment()
    return OtlpSettings(arguments.otlp, seconds, arguments.otlp_cluster or "")


def _interval_of_environment() -> float:
    text = os.environ.get(INTERVAL_VARIABLE)
    if not text:
        return INTERVAL_SECONDS
    try:
        seconds = float(text) / 1000
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise ValueError(f"{INTERVAL_VARIABLE}={text}: expected milliseconds, 100 to 86400000")
    return seconds
