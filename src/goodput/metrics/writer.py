"""What the writers of the exposition formats share: each series once, in catalogue order, then those of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from goodput.metrics import CATALOGUE, Families, Metric
from goodput.metrics.foreign import ForeignFamily


class Writer(ABC):
    """Caches what precedes the values of the last scrape's series, about 300 bytes each. Not thread-safe."""

    content_type = ""

    def __init__(self):
        # By (series, label values): whatever the format keeps.
        self._known: dict[tuple, Any] = {}

    def write(self, parts: Iterable[Families]) -> bytes:
        """All series of these families."""
        parts, known = list(parts), {}
        out: list[bytes] = []
        filled = set().union(*(part.rows for part in parts))
        for name, metric in CATALOGUE.items():
            if name in filled:
                rows = [row for part in parts for row in part.rows.get(name, ())]
                for family, body in self.encode(metric, rows, known):
                    out += (self.head(metric, family, len(body)), body)
        self._known = known
        out += [self.foreign(family) for part in parts for family in part.foreign]
        return b"".join(out)

    @classmethod
    def bodies(cls, families: Families) -> dict[str, Any]:
        """Each family without its head, to be put together with those of other families."""
        writer = cls()
        return {
            family: body
            for name, rows in families.rows.items()
            for family, body in writer.encode(CATALOGUE[name], rows, {})
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
    def encode(self, metric: Metric, rows: list[tuple], known: dict) -> Iterator[tuple[str, bytes]]:
        """The families of a declared series and their bodies; `known` becomes the next cache."""

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

    def encode(self, metric: Metric, rows: list[tuple], known: dict) -> Iterator[tuple[str, bytes]]:
        raise NotImplementedError

    def foreign(self, family: ForeignFamily) -> bytes:
        raise NotImplementedError
