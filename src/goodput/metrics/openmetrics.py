"""Writes OpenMetrics 1.0: the series of the Prometheus text format, and the exemplars of histograms.

https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
"""

from __future__ import annotations

from collections.abc import Iterable

from goodput.metrics import Exemplar, Families, Metric
from goodput.metrics.foreign import SUFFIXES, ForeignFamily
from goodput.metrics.text_format import ESCAPED, TextWriter, number

# In an exemplar: escaped ones are valid, but prometheus_client's parser does not read them.
_PLAIN = str.maketrans({"\\": "?", "\n": "?", '"': "?"})
LABEL_CHARACTERS_MAX = 128  # of an exemplar, names and values together


class OpenMetricsWriter(TextWriter):
    """The family of a counter is named without `_total`, and the last line is `# EOF`."""

    content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    _foreign_names: frozenset[str] = (
        frozenset()
    )  # of the families that are being written, and of their samples

    def write(self, parts: Iterable[Families]) -> bytes:
        parts = list(parts)
        self._foreign_names = frozenset(
            family.name + suffix
            for part in parts
            for family in part.foreign
            for suffix in ("", *SUFFIXES.get(family.kind, ()))
        )
        return super().write(parts) + b"# EOF\n"

    @classmethod
    def head(cls, metric: Metric, family: str, size: int) -> bytes:
        name = family.removesuffix("_total") if metric.kind == "counter" else family
        return f"# HELP {name} {metric.help.translate(ESCAPED)}\n# TYPE {name} {metric.kind}\n".encode()

    def foreign(self, family: ForeignFamily) -> bytes:
        kind, name = family.kind, family.name
        base = name.removesuffix("_total")
        # A counter x_total would be the family x, to which x_created belongs as well; another one may have these names.
        if kind == "counter" and base != name and self._foreign_names.isdisjoint((base, f"{base}_created")):
            name = base
        elif kind in ("counter", "untyped"):
            # As a counter, its samples would have to be renamed.
            kind = "unknown"
        return self._foreign(family, kind, family.help.translate(ESCAPED), name)

    def _histograms(self, metric: Metric, rows: list[tuple], before: dict, known: dict) -> list[str]:
        out, begin = super()._histograms(metric, rows, before, known), 0
        for _, buckets, _, _, exemplar in rows:
            at = _bucket(exemplar, buckets) if exemplar is not None else None
            if exemplar is not None and at is not None:
                out[begin + at] = f"{out[begin + at][:-1]} # {_text(exemplar)}\n"
            begin += len(buckets) + 2  # its count and sum
        return out


def _bucket(exemplar: Exemplar, buckets: list[tuple[str, int]]) -> int | None:
    """The first bucket with observations up to whose bound the exemplar is; they are cumulative, and round to bins."""
    found = (i for i, (bound, count) in enumerate(buckets) if count and exemplar.value <= float(bound))
    return next(found, None)


def _text(exemplar: Exemplar) -> str:
    """Labels, value and time. A label that exceeds what labels may have together is cut."""
    left, pairs = LABEL_CHARACTERS_MAX, []
    for name, value in exemplar.labels:
        value = value[: max(left - len(name), 0)]
        left -= len(name) + len(value)
        pairs.append(f'{name}="{value.translate(_PLAIN)}"')
    return f"{{{','.join(pairs)}}} {number(exemplar.value)} {exemplar.unix_ns / 1e9:.3f}"
