"""The best throughput that an attempt has shown: that of its fastest stretch of PACE_STEPS steps in a row.

In: rows in order, each of one step or of several. Out: samples (or tokens) per second. A row of n steps is n steps of
its mean length and samples. Steps are told off in stretches of PACE_STEPS, and the last steps make one with as many of
those before them as it lacks, which are taken as their stretch's mean. So no part of what was added is left out, and the
rate of the whole is never above the best. Memory is seven numbers, a row costs about 0.3 us. It knows no time outside
steps.
"""

from __future__ import annotations

PACE_STEPS = 32


class Pace:
    """Feed `add` in order; `rate` may be asked at any time."""

    __slots__ = ("best", "last_ns", "last_samples", "ns", "samples", "steps")

    def __init__(self):
        self.best: tuple[float, float] | None = None  # (samples, ns) of the fastest stretch
        self.last_samples = self.last_ns = 0.0  # of the newest whole stretch
        self.steps, self.samples, self.ns = 0, 0, 0  # of the stretch that is not yet whole

    def copy(self) -> Pace:
        other = Pace()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def add(self, count: int, samples: float, ns: int) -> None:
        """`count` steps that had `samples` and took `ns` together."""
        lacking = max(PACE_STEPS - self.steps, 1)
        # Steps without length, as of a clock that was set back, have no rate: they go with those that follow.
        if count < lacking or not ns:
            self._join(count, samples, ns)
            return
        if count == lacking:
            self._join(count, samples, ns)
            self._close()
            return
        self._join(lacking, samples * lacking / count, ns * lacking / count)
        self._close()
        whole, left = divmod(count - lacking, PACE_STEPS)
        if whole:
            self.last_samples, self.last_ns = samples * PACE_STEPS / count, ns * PACE_STEPS / count
            self._note(samples, ns)
        if left:
            self._join(left, samples * left / count, ns * left / count)

    def rate(self) -> float | None:
        """Samples per second of the fastest stretch; of fewer steps their own rate. None if they took no time."""
        best, (samples, ns) = self.best, (self.samples, self.ns)
        if best is not None:
            before = max(PACE_STEPS - self.steps, 0) / PACE_STEPS
            samples, ns = samples + self.last_samples * before, ns + self.last_ns * before
        if best is None or (ns and samples * best[1] > best[0] * ns):
            best = (samples, ns)
        return best[0] * 1e9 / best[1] if best[1] else None

    def _join(self, count: int, samples: float, ns: float) -> None:
        self.steps += count
        self.samples += samples
        self.ns += ns

    def _close(self) -> None:
        self.last_samples, self.last_ns = self.samples, self.ns
        self._note(self.samples, self.ns)
        self.steps, self.samples, self.ns = 0, 0, 0

    def _note(self, samples: float, ns: float) -> None:
        if self.best is None or samples * self.best[1] > self.best[0] * ns:
            self.best = (samples, ns)
