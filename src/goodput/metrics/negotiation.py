"""Which exposition format a scraper gets, by its Accept header."""

from __future__ import annotations

import re

from goodput.metrics.openmetrics import OpenMetricsWriter
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter
from goodput.metrics.writer import Writer

LENGTH_MAX = 1024
_QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
_PROTOBUF = {"proto": "io.prometheus.client.metricfamily", "encoding": "delimited"}
_TEXT = ("text/plain", "text/*", "*/*")


def negotiated(accept: str, has_openmetrics: bool = False) -> type[Writer]:
    """The format of highest quality; of two equal ones that which stands first.

    Protobuf is written only for who names it with its message and encoding, OpenMetrics for who names its version 1.0.0, or
    none, where the caller `has_openmetrics`. Everything else, a malformed header or
    one longer than LENGTH_MAX included, gets text, as a client that sends none; a malformed range is ignored.
    """
    best: dict[type[Writer], float] = {}
    if len(accept) <= LENGTH_MAX:
        for media_range in accept.split(","):
            kind, _, rest = media_range.partition(";")
            writer, quality = _offered(kind.strip().lower(), _parameters(rest))
            if writer is OpenMetricsWriter and not has_openmetrics:
                continue
            if writer is not None and quality is not None:
                best[writer] = max(best.get(writer, 0.0), quality)
    # max takes the first of equal ones, and a dictionary has its keys in the order in which they came.
    writer = max(best, key=best.__getitem__, default=TextWriter)
    return writer if best.get(writer) else TextWriter


def _offered(kind: str, parameters: dict[str, str]) -> tuple[type[Writer] | None, float | None]:
    text = parameters.get("q", "1")
    quality = float(text) if _QUALITY.fullmatch(text) else None
    if kind in _TEXT:
        return TextWriter, quality
    if kind == "application/openmetrics-text":
        return (OpenMetricsWriter if parameters.get("version", "1.0.0") == "1.0.0" else None), quality
    named = {name: parameters.get(name, "") for name in _PROTOBUF}
    is_ours = kind == "application/vnd.google.protobuf" and named == _PROTOBUF
    return ProtobufWriter if is_ours else None, quality


def _parameters(text: str) -> dict[str, str]:
    """By lower-case name; values without quotes, lower-case too. A repeated one makes the range malformed: its last."""
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip().lower(): value.strip().strip('"').lower() for name, _, value in pairs}
