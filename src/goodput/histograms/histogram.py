"""Histograms of durations whose bins are the IEEE binary16 (fp16) numbers.

A quantile is the fp16 rounding of the sample that NumPy's `method="inverted_cdf"` returns, since rounding keeps order.
Its relative error is at most 2**-11 (0.049 %) from 61 us to 65 504 s (18 h), its absolute error at most 30 ns below.
Durations of 65 520 s and more are counted as overflow. Merging is exact, commutative and associative.
Cost: an `add_ns` takes under a microsecond; each distinct bin about 100 bytes, and a steady step touches a few hundred.

    >>> histogram = Histogram()
    >>> for milliseconds in (100, 200, 400):
    ...     histogram.add_ns(milliseconds * 1_000_000)
    >>> histogram.count, histogram.sum_ns, histogram.quantiles([0.5])
    (3, 700000000, [0.199951171875])
"""

import math
import struct

BINS = 31744  # The finite bins are 0 .. BINS - 1.
OVERFLOW = BINS  # The bin of everything from 65 520 s on; its bit pattern is fp16 infinity.
SLOTS = BINS + 1
OCTAVE = 1024  # Bins between one power of two and the next, where fp16 is normal.

NANOSECONDS = 1_000_000_000
OVERFLOW_SECONDS = 65520.0  # Halfway from the last finite fp16 number to the next power of two.
OVERFLOW_NS = 65520 * NANOSECONDS
COUNT_MAX = 2**63 - 1  # What a signed 64-bit counter of another program still holds.

#: Bounds in seconds for a classic Prometheus histogram of phases, two to a factor of ten.
LATENCY_BOUNDS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
#: The same for steps, finer where most lie: between 10 ms and 100 s six to a factor of ten.
STEP_BOUNDS = (
    *(1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 70.0, 100.0, 300.0, 1000.0),
)

_pack_half = struct.Struct("<e").pack
_unpack_half = struct.Struct("<e").unpack
_pack_bits = struct.Struct("<H").pack
_unpack_bits = struct.Struct("<H").unpack


def bin_of(seconds: float) -> int:
    """The bin of a duration: the 15 low bits of its fp16 rounding (ties to even), OVERFLOW from 65 520 s on.

    Raises ValueError when negative or NaN.
    """
    if seconds >= OVERFLOW_SECONDS:
        return OVERFLOW
    if not seconds >= 0:
        raise ValueError(f"a duration must be zero or more seconds, not {seconds!r}")
    # The mask drops the sign bit of -0.0.
    return _unpack_bits(_pack_half(seconds))[0] & 0x7FFF


def bin_of_ns(nanoseconds: int) -> int:
    """The bin of a whole number of nanoseconds. Raises ValueError when negative.

    The division rounds to binary64 first, but no whole number of nanoseconds lies close enough to the midpoint of two
    fp16 numbers for that to change the bin.
    """
    if nanoseconds >= OVERFLOW_NS:
        return OVERFLOW
    if nanoseconds < 0:
        raise ValueError(f"a duration must be zero or more nanoseconds, not {nanoseconds!r}")
    return _unpack_bits(_pack_half(nanoseconds / NANOSECONDS))[0]


def value_of(bin: int) -> float:
    """The seconds a bin stands for, exactly; infinity for OVERFLOW. Raises ValueError outside 0 .. OVERFLOW."""
    if not 0 <= bin <= OVERFLOW:
        raise ValueError(f"a bin must be within 0 .. {OVERFLOW}, not {bin!r}")
    return _unpack_half(_pack_bits(bin))[0]


class Histogram:
    """Counts of durations by fp16 bin, with their exact sum in nanoseconds. One writer, or a lock around it."""

    __slots__ = ("_counts", "count", "sum_ns")

    def __init__(self):
        self._counts: dict[int, int] = {}
        self.count = 0
        self.sum_ns = 0

    @classmethod
    def of_counts(cls, counts: dict[int, int], sum_ns: int) -> "Histogram":
        """A histogram of these counts by bin, which it keeps, and the sum of their durations."""
        found = cls()
        found._counts, found.count, found.sum_ns = counts, sum(counts.values()), sum_ns
        return found

    def add_ns(self, nanoseconds: int) -> None:
        """Count a duration. Raises ValueError when it is negative."""
        bin = bin_of_ns(nanoseconds)
        self._counts[bin] = self._counts.get(bin, 0) + 1
        self.count += 1
        self.sum_ns += nanoseconds

    def merge(self, other: "Histogram") -> None:
        counts = self._counts
        for bin, count in other._counts.items():
            counts[bin] = counts.get(bin, 0) + count
        self.count += other.count
        self.sum_ns += other.sum_ns

    def quantiles(self, qs) -> list[float | None]:
        """For every q in `qs` the smallest recorded value v, in seconds, such that at least q * count samples are <= v.

        None when empty, infinity when it lies in the overflow. This is NumPy's `method="inverted_cdf"` (Hyndman and
        Fan 1996, definition 1), q * count taken in binary64 as there. Raises ValueError when a q is not in 0 .. 1.
        """
        qs = list(qs)
        for q in qs:
            if not 0 <= q <= 1:
                raise ValueError(f"a quantile must lie in 0 .. 1, not {q!r}")
        if not self.count:
            return [None] * len(qs)
        ranks = [min(max(math.ceil(q * self.count), 1), self.count) for q in qs]
        values = self._values_at(sorted(set(ranks)))
        return [values[rank] for rank in ranks]

    def to_pairs(self) -> list[tuple[int, int]]:
        """(bin, count) of every bin with samples, ascending."""
        return sorted(self._counts.items())

    def __eq__(self, other):
        if not isinstance(other, Histogram):
            return NotImplemented
        return self.sum_ns == other.sum_ns and self._counts == other._counts

    __hash__ = None  # pyright: ignore[reportAssignmentType] -- how Python says that it is mutable

    def _values_at(self, ranks: list[int]) -> dict[int, float]:
        """The value at each of these ascending ranks within 1 .. count."""
        values, cumulative, bins = {}, 0, iter(sorted(self._counts))
        for rank in ranks:
            while cumulative < rank:
                bin = next(bins)
                cumulative += self._counts[bin]
            values[rank] = value_of(bin)
        return values
