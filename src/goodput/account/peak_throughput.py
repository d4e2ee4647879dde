"""The best throughput that an attempt has reached: that of its fastest stretch of STRETCH_STEPS consecutive steps.

Rows come in order; a row of n steps is n steps of its mean length and samples. The last steps form a stretch together
with as many steps before them as they lack, so the rate of the whole is never above the best. Memory is seven numbers,
a row costs about 0.3 us.
"""

from __future__ import annotations

STRETCH_STEPS = 32


class PeakThroughput:
    """Feed `add` in order; `rate` may be read at any time."""

    __slots__ = ("best", "last_ns", "last_samples", "ns", "samples", "steps")

    def __init__(self):
        self.best: tuple[float, float] | None = None  # (samples, ns) of the fastest stretch
        self.last_samples = self.last_ns = 0.0  # of the newest complete stretch
        self.steps, self.samples, self.ns = 0, 0, 0  # of the stretch that is not yet complete

    def copy(self) -> PeakThroughput:
        other = PeakThroughput.__new__(PeakThroughput)
        other.best, other.last_samples, other.last_ns = self.best, self.last_samples, self.last_ns
        other.steps, other.samples, other.ns = self.steps, self.samples, self.ns
        return other

    def add(self, count: int, samples: float, ns: int) -> None:
        """`count` steps that had `samples` and took `ns` together."""
        lacking = max(STRETCH_STEPS - self.steps, 1)
        # Steps without length (a clock that was set back) have no rate and join the following steps.
        if count < lacking or not ns:
            self._join(count, samples, ns)
            return
        if count == lacking:
            self._join(count, samples, ns)
            self._close()
            return
        self._join(lacking, samples * lacking / count, ns * lacking / count)
        self._close()
        whole, left = divmod(count - lacking, STRETCH_STEPS)
        if whole:
            self.last_samples, self.last_ns = samples * STRETCH_STEPS / count, ns * STRETCH_STEPS / count
            self._note(samples, ns)
        if left:
            self._join(left, samples * left / count, ns * left / count)

    def add_steps(self, samples: list[int], ns: list[int]) -> None:
        """Single steps in order: the samples and length of each. The same as `add` for those that have samples."""
        if 0 in samples:
            ns = [length for length, many in zip(ns, samples, strict=True) if many]
            samples = [many for many in samples if many]
        at = 0
        while at < len(ns):
            end = at + max(STRETCH_STEPS - self.steps, 1)
            own = ns[at:end]
            self._join(len(own), sum(samples[at:end]), sum(own))
            if self.steps >= STRETCH_STEPS and own[-1]:
                self._close()
            at = end

    def rate(self) -> float | None:
        """Samples per second of the fastest stretch; of fewer steps their own rate. None if they took no time."""
        best, (samples, ns) = self.best, (self.samples, self.ns)
        if best is not None:
            before = max(STRETCH_STEPS - self.steps, 0) / STRETCH_STEPS
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
