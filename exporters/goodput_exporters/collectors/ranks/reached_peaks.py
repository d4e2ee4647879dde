"""What this node's devices reach in matrix products and its ranks in all-reduces, from the last `goodput probe` on it.

The probe's file is looked at once in LOOK_SECONDS, and read when it has changed. A damaged or missing one is none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from goodput.probe import kept
from goodput.probe.reachable import bus, peak

LOOK_SECONDS = 60


class ReachedPeaks:
    """`of(device, dtype, devices)` is FLOP/s, or None where it is not known. `path` is that of the kept probe."""

    def __init__(self, path: str, monotonic_ns: Callable[[], int]):
        self._path, self._monotonic_ns = path, monotonic_ns
        self._next_ns = 0
        self._stamp: tuple[int, int] | None = None
        self._probe: dict | None = None
        self._known: dict[tuple[str, str], float | None] = {}
        self._known_bus: dict[int, float | None] = {}

    def bus(self, ranks: int) -> float | None:
        """Bytes a second of an all-reduce over at least so many ranks; None where none was probed."""
        if not self._path or ranks < 2:
            return None
        if self._monotonic_ns() >= self._next_ns:
            self._look()
        if ranks not in self._known_bus:
            self._known_bus[ranks] = bus(self._probe, ranks)
        return self._known_bus[ranks]

    def of(self, device: str, dtype: str, devices: int) -> float | None:
        if not self._path or not device or not dtype:
            return None
        if self._monotonic_ns() >= self._next_ns:
            self._look()
        if (device, dtype) not in self._known:
            self._known[device, dtype] = peak(self._probe, dtype, device)
        reached = self._known[device, dtype]
        return None if reached is None else reached * devices

    def _look(self) -> None:
        self._next_ns = self._monotonic_ns() + LOOK_SECONDS * 10**9
        stamp = None
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            stamp = found.st_mtime_ns, found.st_ino
        if stamp != self._stamp:
            self._stamp, self._probe = stamp, kept.load_file(self._path) if stamp else None
            self._known, self._known_bus = {}, {}
