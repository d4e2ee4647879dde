"""Limits how often something is read."""

from __future__ import annotations

from collections.abc import Callable


class Interval:
    """`is_due` is true at the first call, and then at most once per `seconds`."""

    def __init__(self, seconds: float, monotonic_ns: Callable[[], int]):
        self._ns, self._monotonic_ns = seconds * 1e9, monotonic_ns
        self._last_ns: int | None = None

    def is_due(self) -> bool:
        now_ns = self._monotonic_ns()
        if self._last_ns is not None and 0 <= now_ns - self._last_ns < self._ns:
            return False
        self._last_ns = now_ns
        return True
