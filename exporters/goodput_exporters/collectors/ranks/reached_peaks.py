"""What this node reaches in matrix products, copies and all-reduces, from the last `goodput probe` on it."""

from __future__ import annotations

from collections.abc import Callable

from goodput.probe.kept import KeptFile, value


class ReachedPeaks:
    """`of(device, dtype, devices)` is FLOP/s, or None where it is not known. `path` is that of the kept probe."""

    def __init__(self, path: str, monotonic_ns: Callable[[], int]):
        self._file = KeptFile(path, monotonic_ns)
        self._probe: dict | None = None
        self._known: dict[tuple[str, str], float | None] = {}
        self._known_bus: dict[int, float | None] = {}

    def bus(self, ranks: int) -> float | None:
        """Bytes a second of an all-reduce over at least so many ranks; None where none was probed."""
        if ranks < 2:
            return None
        self._poll()
        if ranks not in self._known_bus:
            self._known_bus[ranks] = _reachable().bus(self._probe, ranks) if self._probe else None
        return self._known_bus[ranks]

    def of(self, device: str, dtype: str, devices: int) -> float | None:
        if not device or not dtype:
            return None
        self._poll()
        if (device, dtype) not in self._known:
            self._known[device, dtype] = (
                _reachable().peak(self._probe, dtype, device) if self._probe else None
            )
        reached = self._known[device, dtype]
        return None if reached is None else reached * devices

    def h2d(self, device: str) -> float | None:
        """Bytes a second of pinned copies to a device; None where it is not known."""
        return value(self._file.document(), "h2d_pinned", device) if device else None

    def _poll(self) -> None:
        found = self._file.document()
        if found is not self._probe:
            self._probe, self._known, self._known_bus = found, {}, {}


def _reachable():
    """The module is imported where there is a probe: with the account's it takes 2 MiB."""
    from goodput.probe import reachable

    return reachable
