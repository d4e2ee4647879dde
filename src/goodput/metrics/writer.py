"""What the writers of the exposition formats share: each series once, in catalogue order, then those of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from goodput.metrics import CATALOGUE, Families, Metric
from goodput.metrics.foreign import ForeignFamily


class Written(NamedTuple):
    """A declared series at the last scrape: its rows, by label values whatever the format keeps, and its text."""

    rows: list[tuple]
    known: dict[tuple, Any]
    text: bytes


class Writer(ABC):
    """Caches the last scrape: the text of series that have not changed, and of others what precedes their values.

    About 400 bytes for each series. Not thread-safe.
    """

    content_type = ""

    def __init__(self):
        self._written: dict[str, Written] = {}

    def write(self, parts: Iterable[Families]) -> bytes:
        """All series of these families."""
        parts, written = list(parts), {}
        filled: dict[str, list[tuple]] = {}
        for part in parts:
            for name, rows in part.rows.items():
                filled[name] = [*filled.get(name, ()), *rows]
        for name, metric in CATALOGUE.items():
            if name in filled:
                rows, before = filled[name], self._written.get(name)
                # Equal values have the same text: Families has no -0.0.
                is_same = before is not None and before.rows == rows
                written[name] = before if is_same else self._encoded(metric, rows, before)
        self._written = written
        out = [one.text for one in written.values()]
        out += [self.foreign(family) for part in parts for family in part.foreign]
        return b"".join(out)

    def _encoded(self, metric: Metric, rows: list[tuple], before: Written | None) -> Written:
        known, out = {}, []
        for family, body in self.encode(metric, rows, before.known if before else {}, known):
            out += (self.head(metric, family, len(body)), body)
        return Written(rows, known, b"".join(out))

    @classmethod
    def bodies(cls, families: Families) -> dict[str, Any]:
        """Each family without its head, to be put together with those of other families."""
        writer = cls()
        return {
            family: body
            for name, rows in families.rows.items()
            for family, body in writer.encode(CATALOGUE[name], rows, {}, {})
        }

    @classmethod
    def families_of(cls, metric: Metric) -> tuple[str, ...]:
        """The families that a declared series becomes, in order."""
        return (metric.name,)

    @classmethod
    @abstractmethod
    def head(cls, metric: Metric, family: str, size: int) -> bytes:
        """What precedes a family whose body has `size` bytes."""

    @abstractmethod
    def encode(
        self, metric: Metric, rows: list[tuple], before: dict, known: dict
    ) -> Iterator[tuple[str, bytes]]:
        """The families of a declared series and their bodies; `before` is what the last call put into `known`."""

    @abstractmethod
    def foreign(self, family: ForeignFamily) -> bytes:
        """A family that is not in the catalogue, with its head."""


class Rows(Writer):
    """Not a format: the rows themselves, for what does not go over /metrics."""

    @classmethod
    def bodies(cls, families: Families) -> dict[str, Any]:
        return families.rows

    @classmethod
    def head(cls, metric: Metric, family: str, size: int) -> bytes:
        raise NotImplementedError

    def encode(
        self, metric: Metric, rows: list[tuple], before: dict, known: dict
    ) -> Iterator[tuple[str, bytes]]:
        raise NotImplementedError

    def foreign(self, family: ForeignFamily) -> bytes:
        raise NotImplementedError
