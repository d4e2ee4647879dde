"""Writes OpenMetrics 1.0: the series of the Prometheus text format, and the exemplars of histograms.

https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from goodput.metrics import Exemplar, Families, Metric
from goodput.metrics.foreign import SUFFIXES, ForeignFamily, ForeignSample
from goodput.metrics.text_format import ESCAPED, TextWriter, number

# In an exemplar: escaped ones are valid, but prometheus_client's parser does not read them.
_PLAIN = str.maketrans({"\\": "?", "\n": "?", '"': "?"})
_CREATED = ("counter", *SUFFIXES)  # kinds of families that have the times at which they were created
LABEL_CHARACTERS_MAX = 128  # of an exemplar, names and values together


class OpenMetricsWriter(TextWriter):
    """The family of a counter is named without `_total`, and the last line is `# EOF`."""

    content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    # Of others, as they are being written: the families by name, and all names of them and of their samples.
    _families: Mapping[str, ForeignFamily] = {}
    _names: frozenset[str] = frozenset()

    def write(self, parts: Iterable[Families]) -> bytes:
        parts = list(parts)
        self._families = {family.name: family for part in parts for family in part.foreign}
        self._names = frozenset(
            name + suffix
            for name, family in self._families.items()
            for suffix in ("", *SUFFIXES.get(family.kind, ()))
        )
        return super().write(parts) + b"# EOF\n"

    @classmethod
    def head(cls, metric: Metric, family: str, size: int) -> bytes:
        name = family.removesuffix("_total") if metric.kind == "counter" else family
        return f"# HELP {name} {metric.help.translate(ESCAPED)}\n# TYPE {name} {metric.kind}\n".encode()

    def foreign(self, family: ForeignFamily) -> bytes:
        kind, name = family.kind, family.name
        if self._is_of_another(family):
            return b""
        if counter := self._counter(family):
            name = counter
        elif kind in ("counter", "untyped"):
            # As a counter, its samples would have to be renamed.
            kind = "unknown"
        created = self._created(name) if kind in _CREATED else None
        if created is not None:
            family = replace(family, samples=_with_created(family.samples, created))
        return self._foreign(family, kind, family.help.translate(ESCAPED), name)

    def _counter(self, family: ForeignFamily | None) -> str:
        """The name of a counter's family here, without _total; "" where it cannot be one or another has one of its names."""
        base = family.name.removesuffix("_total") if family is not None and family.kind == "counter" else ""
        if family is None or base == family.name or base in self._names:
            return ""
        return base if f"{base}_created" not in self._names or self._created(base) is not None else ""

    def _created(self, name: str) -> ForeignFamily | None:
        """The family of the times at which those of this one were created, which the text format has apart."""
        family = self._families.get(f"{name}_created")
        return family if family is not None and family.kind in ("gauge", "untyped") else None

    def _is_of_another(self, family: ForeignFamily) -> bool:
        """Whether a family is the times of another one, which has them here."""
        base = family.name.removesuffix("_created")
        if base == family.name or self._created(base) is not family:
            return False
        named = self._families.get(base)
        return (named is not None and named.kind in SUFFIXES) or bool(
            self._counter(self._families.get(f"{base}_total"))
        )

    def _histograms(self, metric: Metric, rows: list[tuple], before: dict, known: dict) -> list[str]:
        out, begin = super()._histograms(metric, rows, before, known), 0
        for _, buckets, _, _, exemplar in rows:
            at = _bucket(exemplar, buckets) if exemplar is not None else None
            if exemplar is not None and at is not None:
                out[begin + at] = f"{out[begin + at][:-1]} # {_text(exemplar)}\n"
            begin += len(buckets) + 2  # its count and sum
        return out


def _with_created(samples: list[ForeignSample], created: ForeignFamily) -> list[ForeignSample]:
    """The samples with the time at which each was created behind those of the same labels, as the format wants it."""
    times = {one.labels: one for one in created.samples}
    out = []
    for labels, group in itertools.groupby(samples, _labels_of_metric):
        out += [*group, *([times.pop(labels)] if labels in times else ())]
    return out + list(times.values())


def _labels_of_metric(sample: ForeignSample) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in sample.labels if pair[0] not in ("le", "quantile"))


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
