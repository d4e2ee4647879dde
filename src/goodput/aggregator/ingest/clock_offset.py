"""How far a clock is ahead of ours, as bounds."""

from __future__ import annotations

from typing import NamedTuple

# A clock that is off by more shows in the figures of a run; synchronised clocks differ by milliseconds.
SKEW_NS = 5 * 10**9
WIDE_NS = 10**9
WIDEST = (-(1 << 63), 1 << 63)  # of a clock of which nothing is known


class Offset(NamedTuple):
    """A node's clock less ours lies between these bounds."""

    low_ns: int
    high_ns: int

    @property
    def ns(self) -> int:
        """The estimate: the middle; of wide bounds the lower one, since the fastest push hardly took any time."""
        is_wide = self.high_ns - self.low_ns > WIDE_NS
        return self.low_ns if is_wide else (self.low_ns + self.high_ns) // 2

    @property
    def is_known(self) -> bool:
        """Whether it may be shown: a push that says nothing of its way back may only have come late."""
        return self.high_ns < WIDEST[1] or self.low_ns > 0

    @property
    def correction_ns(self) -> int:
        """The estimate where the clocks surely differ, else 0."""
        return 0 if self.low_ns <= 0 <= self.high_ns else self.ns

    @property
    def is_skewed(self) -> bool:
        """Whether the clocks surely differ by more than SKEW_NS."""
        return self.low_ns > SKEW_NS or self.high_ns < -SKEW_NS

    def plus(self, ns: int) -> Offset:
        """That of a clock which is so far ahead of the node's."""
        low, high = self
        return Offset(low if low == WIDEST[0] else low + ns, high if high == WIDEST[1] else high + ns)
