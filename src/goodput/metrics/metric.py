"""The declaration of one series."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """`exposer` is node or aggregator; `unit` is for dashboards and readers."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    exposer: str


def declare(exposer: str, rows: list[tuple]) -> list[Metric]:
    """Metrics from rows of (name, kind, unit, space-separated labels, help)."""
    return [
        Metric(name, kind, unit, tuple(labels.split()), text, exposer)
        for name, kind, unit, labels, text in rows
    ]
