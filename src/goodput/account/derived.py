"""A mapping whose values are made from those of another one, each when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Derived(Mapping[K, V]):
    """`make(key, value)` for each key of `of` with its value there."""

    def __init__(self, of: Mapping[K, Any], make: Callable[[K, Any], V]):
        self._of, self._make = of, make

    def __getitem__(self, key: K) -> V:
        return self._make(key, self._of[key])

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def __iter__(self) -> Iterator[K]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)
