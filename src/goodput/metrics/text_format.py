"""Writes the Prometheus text format 0.0.4, byte for byte like prometheus_client's generate_latest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from goodput.metrics import Metric
from goodput.metrics.foreign import ForeignFamily
from goodput.metrics.writer import Writer

_HELP_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n"})
ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
# Sets of labels whose text is kept: many families have those of the same device.
FOREIGN_LABELS_MAX = 512
# Names and values of labels whose text is kept.
LABELS_MAX = 1024


class TextWriter(Writer):
    """Keeps the line up to the value; for a histogram one per bucket, count and sum. Native histograms are left out."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    @classmethod
    def head(cls, metric: Metric, family: str, size: int) -> bytes:
        return f"# HELP {family} {metric.help}\n# TYPE {family} {metric.kind}\n".encode()

    def encode(
        self, metric: Metric, rows: list[tuple], before: dict, known: dict
    ) -> Iterator[tuple[str, bytes]]:
        lines = self._histograms if metric.kind == "histogram" else self._lines
        yield metric.name, "".join(lines(metric, rows, before, known)).encode()

    def foreign(self, family: ForeignFamily) -> bytes:
        return self._foreign(family, family.kind, family.help.translate(_HELP_ESCAPED), family.name)

    def _foreign(self, family: ForeignFamily, kind: str, help: str, name: str) -> bytes:
        lines = [f"# HELP {name} {help}\n# TYPE {name} {kind}\n"]
        for one in family.samples:
            lines.append(f"{one.name}{_foreign_labels(one.labels)} {number(one.value)}\n")
        return "".join(lines).encode()

    def _lines(self, metric: Metric, rows: list[tuple], before: dict, known: dict) -> list[str]:
        out = []
        for values, value in rows:
            known[values] = line = before.get(values) or f"{metric.name}{_labels(metric.labels, values)} "
            out.append(f"{line}{number(value)}\n")
        return out

    def _histograms(self, metric: Metric, rows: list[tuple], before: dict, known: dict) -> list[str]:
        out = []
        for values, buckets, total, *_ in rows:
            bounds, counts = zip(*buckets, strict=True)
            bounds_before, heads = before.get(values, (None, ()))
            if bounds != bounds_before:
                heads = _heads(metric, values, bounds)
            known[values] = bounds, heads
            figures = *counts, counts[-1], total
            out += [f"{head}{number(figure)}\n" for head, figure in zip(heads, figures, strict=True)]
        return out


def _heads(metric: Metric, values: tuple[str, ...], bounds: tuple[str, ...]) -> list[str]:
    """The lines of a histogram up to their values."""
    order = _ordered((*metric.labels, "le"))
    place = [name for name, _ in order].index("le")
    pairs = [f'{name}="{_escaped(values[at])}"' for name, at in order if name != "le"]
    heads = []
    for bound in bounds:
        labels = ",".join([*pairs[:place], f'le="{bound}"', *pairs[place:]])
        heads.append(f"{metric.name}_bucket{{{labels}}} ")
    return heads + [f"{metric.name}_{part}{_labels(metric.labels, values)} " for part in ("count", "sum")]


def number(value: float) -> str:
    """A value as Go formats it: shortest form, with an exponent from a million on."""
    text = repr(float(value))
    if -math.inf < value < 1e6:
        return text
    whole, point, rest = text.partition(".")
    if len(whole) > 6 and point and value > 0:
        digits = (whole[1:] + rest).rstrip("0")
        return f"{whole[0]}{'.' if digits else ''}{digits}e+{len(whole) - 1:02d}"
    return _NAMED.get(text, text)


_NAMED = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = [f'{name}="{_escaped(values[at])}"' for name, at in _ordered(names)]
    return "{" + ",".join(pairs) + "}" if pairs else ""


@lru_cache(LABELS_MAX)
def _ordered(names: tuple[str, ...]) -> list[tuple[str, int]]:
    """The names in order with their places."""
    return sorted((name, at) for at, name in enumerate(names))


@lru_cache(LABELS_MAX)
def _escaped(value: str) -> str:
    return value.translate(ESCAPED)


@lru_cache(FOREIGN_LABELS_MAX)
def _foreign_labels(labels: tuple[tuple[str, str], ...]) -> str:
    names, values = zip(*labels, strict=True) if labels else ((), ())
    return _labels(names, values)
