"""A histogram of durations whose bins are the IEEE binary16 (fp16) numbers.

In: durations in seconds (`add`) or integer nanoseconds (`add_ns`), dense blocks of counters as a rank
page stores them (`add_dense`), pairs as they cross a wire (`Histogram.from_pairs`), other histograms
(`merge`, `+`).  Out: quantiles, mean, exact count and nanosecond sum, Prometheus buckets, pairs.

Guarantee: a quantile is the fp16 rounding of the very sample NumPy's `method="inverted_cdf"` returns,
since rounding keeps order.  So its relative error is at most 2**-11 (0.049 %) from 2**-14 s (61 us) to
65 504 s (18 h), its absolute error at most 30 ns below; 65 520 s and more is counted as overflow.  Count
and sum are exact integers, and merging is exact, commutative and associative.
Cost: one dict entry (about 100 bytes) per distinct bin seen, at most 31 745 (3 MiB); a steady training
step touches a few hundred.  An `add_ns` takes well under a microsecond.

What it does not know: which phase, rank or window the samples belong to, when they happened, or the order
they came in.  The sum cannot be checked against the bins, because a page read while it is written may be
one sample ahead in either.

    >>> histogram = Histogram()
    >>> for milliseconds in (100, 200, 400):
    ...     histogram.add_ns(milliseconds * 1_000_000)
    >>> histogram.count, histogram.sum_ns, histogram.quantile(0.5)
    (3, 700000000, 0.199951171875)
"""

import math
import struct
from itertools import pairwise
from operator import index

BINS = 31744  # The finite bins are 0 .. BINS - 1.
OVERFLOW = BINS  # The slot of everything from 65 520 s on; its bit pattern is fp16 infinity.
SLOTS = BINS + 1
DENSE_WORDS = 32768  # The slots, with zeros up to a whole number of octaves.
OCTAVE = 1024  # Bins between one power of two and the next, where fp16 is normal.

NANOSECONDS = 1_000_000_000
OVERFLOW_SECONDS = 65520.0  # Halfway from the last finite fp16 number to the next power of two.
OVERFLOW_NS = 65520 * NANOSECONDS
COUNT_MAX = 2**63 - 1  # What a signed 64-bit column or a JSON reader of another language still holds.
SUM_NS_MAX = 2**127 - 1  # 64 bits are 292 years, which 10 000 ranks spend in eleven days.

#: Bounds in seconds for a classic Prometheus histogram of training phases, two to a factor of ten.
LATENCY_BOUNDS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

_pack_half = struct.Struct("<e").pack
_unpack_half = struct.Struct("<e").unpack
_pack_bits = struct.Struct("<H").pack
_unpack_bits = struct.Struct("<H").unpack
_ZEROS = bytes(8 * OCTAVE)


def bin_of(seconds):
    """Return the bin of a duration in seconds: the 15 low bits of its fp16 rounding (ties to even).

    65 520 s and more, infinity included, is OVERFLOW.  Raises ValueError when negative or NaN.
    """
    if seconds >= OVERFLOW_SECONDS:
        return OVERFLOW
    if not seconds >= 0:
        raise ValueError(f"a duration must be zero or more seconds, not {seconds!r}")
    # The mask drops the sign bit of -0.0.
    return _unpack_bits(_pack_half(seconds))[0] & 0x7FFF


def bin_of_ns(nanoseconds):
    """Return the bin of a duration in integer nanoseconds.  Raises ValueError when negative.

    The division rounds to binary64 first, but no whole number of nanoseconds lies close enough to the
    midpoint of two fp16 numbers for that to change the bin.
    """
    if nanoseconds >= OVERFLOW_NS:
        return OVERFLOW
    if nanoseconds < 0:
        raise ValueError(f"a duration must be zero or more nanoseconds, not {nanoseconds!r}")
    return _unpack_bits(_pack_half(nanoseconds / NANOSECONDS))[0]


def value_of(bin):
    """Return the seconds a bin stands for, exactly; infinity for OVERFLOW.

    Raises ValueError unless the bin is an integer within 0 .. OVERFLOW.
    """
    return _unpack_half(_pack_bits(_checked_bin(bin)))[0]


def edges_of(bin):
    """Return (low, high), the seconds that round into a bin; OVERFLOW is (65520.0, infinity).

    A tie rounds to the even bin, so both edges belong to an even bin and neither to an odd one.
    Neighbouring bins share their edge, and both edges are exact.
    """
    bin = _checked_bin(bin)
    return _low_edge_of(bin), math.inf if bin == OVERFLOW else _low_edge_of(bin + 1)


def _low_edge_of(bin):
    """Return the seconds halfway between a bin and the one below it."""
    if bin == OVERFLOW:
        return OVERFLOW_SECONDS
    return (value_of(bin - 1) + value_of(bin)) / 2 if bin else 0.0


class Histogram:
    """Counts of durations by fp16 bin, with their exact sum.

        steps = Histogram()
        steps.add(0.25)                     # seconds
        steps.add_ns(251_000_000, count=3)  # nanoseconds
        steps.merge(other)                  # or steps + other
        p50, p99 = steps.quantiles([0.5, 0.99])

    Not thread-safe: one writer, or a lock around it.
    """

    __slots__ = ("_count", "_counts", "_sum_ns")

    def __init__(self):
        self._counts = {}
        self._count = 0
        self._sum_ns = 0

    def add(self, seconds, count=1):
        """Add `count` samples of `seconds`, which the sum takes to the nearest nanosecond.

        Raises ValueError when negative, NaN or infinite (it has no sum), or when count is negative.
        """
        if seconds == math.inf:
            raise ValueError("a duration must be finite to be added, since an infinite one leaves no sum")
        self._put(bin_of(seconds), _nearest_ns(seconds), count)

    def add_ns(self, nanoseconds, count=1):
        """Add `count` samples of a whole number of nanoseconds.

        Raises ValueError when that number or the count is negative, TypeError when either is a float.
        """
        nanoseconds = index(nanoseconds)
        self._put(bin_of_ns(nanoseconds), nanoseconds, count)

    def add_dense(self, first_bin, counts, sum_ns=0):
        """Add counters that lie side by side, counts[i] being samples of bin first_bin + i.

        `counts` is a memoryview of unsigned 64-bit words, such as a part of a mapped rank page, or a sequence
        of integers.  `sum_ns` is the sum of the samples in nanoseconds; for a histogram that comes in several
        blocks, give it with one of them.  Zeros may follow the overflow bin, up to DENSE_WORDS in all.
        An empty octave of memory costs one comparison (about 1 us), one that a phase wrote about 20 us.
        Raises ValueError, and adds nothing, when bins or counts are out of range.
        """
        first_bin = _checked_bin(first_bin)
        if len(counts) > DENSE_WORDS - first_bin:
            raise ValueError(f"{len(counts)} counts from bin {first_bin} on, of {DENSE_WORDS} at most")
        sum_ns = _checked(sum_ns, 0, SUM_NS_MAX, "sum_ns")
        pairs = list(_nonzero(first_bin, counts))
        for bin, count in pairs:
            _checked(bin, 0, OVERFLOW, "a bin with samples")
            _checked(count, 1, COUNT_MAX, "the count of bin {}", bin)
        for bin, count in pairs:
            count = index(count)
            self._counts[bin] = self._counts.get(bin, 0) + count
            self._count += count
        self._sum_ns += sum_ns

    def merge(self, other):
        """Add every sample of another histogram to this one."""
        counts = self._counts
        for bin, count in other._counts.items():
            counts[bin] = counts.get(bin, 0) + count
        self._count += other._count
        self._sum_ns += other._sum_ns

    def __add__(self, other):
        if not isinstance(other, Histogram):
            return NotImplemented
        both = self.copy()
        both.merge(other)
        return both

    def copy(self):
        """Return an independent histogram of the same samples."""
        twin = Histogram()
        twin.merge(self)
        return twin

    @property
    def count(self):
        """How many samples were added, overflow included."""
        return self._count

    @property
    def sum_ns(self):
        """The exact sum of the samples in nanoseconds, overflow included; an int of any size."""
        return self._sum_ns

    @property
    def sum(self):
        """The sum of the samples in seconds."""
        return self._sum_ns / NANOSECONDS

    @property
    def mean(self):
        """The mean in seconds, from the exact sum; None when empty."""
        return self._sum_ns / (self._count * NANOSECONDS) if self._count else None

    @property
    def min(self):
        """The fp16 value of the smallest sample in seconds; None when empty."""
        return value_of(min(self._counts)) if self._counts else None

    @property
    def max(self):
        """The fp16 value of the largest sample in seconds, infinity on overflow; None when empty."""
        return value_of(max(self._counts)) if self._counts else None

    @property
    def overflow(self):
        """How many samples were 65 520 s or more."""
        return self._counts.get(OVERFLOW, 0)

    def quantile(self, q):
        """Return the smallest recorded value v such that at least q * count samples are <= v.

        In seconds; None when empty, infinity when the rank lies in the overflow.  This is NumPy's
        `method="inverted_cdf"` (Hyndman and Fan 1996, definition 1), q * count taken in binary64 as there.
        Raises ValueError when q is not in 0 .. 1.
        """
        return self.quantiles((q,))[0]

    def quantiles(self, qs):
        """Return the quantile of every q in `qs`, in their order, from one pass over the bins."""
        qs = list(qs)
        for q in qs:
            if not 0 <= q <= 1:
                raise ValueError(f"a quantile must lie in 0 .. 1, not {q!r}")
        if not self._count:
            return [None] * len(qs)
        ranks = [min(max(math.ceil(q * self._count), 1), self._count) for q in qs]
        values = self._values_at(sorted(set(ranks)))
        return [values[rank] for rank in ranks]

    def to_buckets(self, bounds=LATENCY_BOUNDS):
        """Return [(bound, samples <= bound), ...] for a classic Prometheus histogram, last for infinity.

        Bounds are finite seconds in ascending order; a bin counts as <= bound when its value is.  A sample
        within half a bin of a bound (2**-11 of it, 30 ns below 61 us) can therefore lie on either side: a
        sample of exactly 0.3 s, whose fp16 value is 0.30005, does not count as <= 0.3.  The overflow is in
        the last bucket only, even under a bound above 65 520.  Raises ValueError when bounds do not ascend.
        """
        bounds = list(bounds)
        if not all(low < high for low, high in pairwise([*bounds, math.inf])):
            raise ValueError(f"bucket bounds must be finite and ascend, unlike {bounds!r}")
        buckets, cumulative, pairs, at = [], 0, self.to_pairs(), 0
        for bound in bounds:
            while at < len(pairs) and value_of(pairs[at][0]) <= bound:
                cumulative += pairs[at][1]
                at += 1
            buckets.append((bound, cumulative))
        return [*buckets, (math.inf, self._count)]

    def to_pairs(self):
        """Return [(bin, count), ...] by ascending bin, no count zero; with sum_ns it is the whole state."""
        return sorted(self._counts.items())

    @classmethod
    def from_pairs(cls, pairs, sum_ns):
        """Build a histogram from what `to_pairs()` and `sum_ns` gave; the input may come from anyone.

        Raises ValueError, naming the place, unless `pairs` is a list or tuple of (bin, count), bins ascending
        within 0 .. OVERFLOW, counts within 1 .. 2**63 - 1, and sum_ns within 0 .. 2**127 - 1.
        """
        if not isinstance(pairs, (list, tuple)):
            raise ValueError(f"pairs must be a list of (bin, count), not a {type(pairs).__name__}")
        histogram = cls()
        histogram._sum_ns = _checked(sum_ns, 0, SUM_NS_MAX, "sum_ns")
        next_bin = 0
        for position, pair in enumerate(pairs):
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise ValueError(f"pairs[{position}] must be (bin, count)")
            # Ascending bins also mean no bin twice, and so a bound on what a caller can make us store.
            bin = _checked(pair[0], next_bin, OVERFLOW, "the bin of pairs[{}], the bins ascending,", position)
            count = _checked(pair[1], 1, COUNT_MAX, "the count of pairs[{}]", position)
            histogram._counts[bin] = count
            histogram._count += count
            next_bin = bin + 1
        return histogram

    @classmethod
    def from_dense(cls, counts, first_bin=0, *, sum_ns):
        """Build a histogram from one dense block; see `add_dense`."""
        histogram = cls()
        histogram.add_dense(first_bin, counts, sum_ns)
        return histogram

    def __eq__(self, other):
        if not isinstance(other, Histogram):
            return NotImplemented
        return self._sum_ns == other._sum_ns and self._counts == other._counts

    __hash__ = None

    def __repr__(self):
        if not self._count:
            return "<Histogram: no samples>"
        p50, p99 = self.quantiles((0.5, 0.99))
        return f"<Histogram: {self._count} samples, {self.sum:.9g} s, p50 {p50:.4g} s, p99 {p99:.4g} s>"

    def _put(self, bin, nanoseconds, count):
        """Count samples whose bin and nanoseconds are known and checked."""
        count = index(count)
        if count < 0:
            raise ValueError(f"a count must be zero or more, not {count}")
        if count:  # A zero in the dict would make equal histograms differ.
            self._counts[bin] = self._counts.get(bin, 0) + count
            self._count += count
            self._sum_ns += nanoseconds * count

    def _values_at(self, ranks):
        """Return {rank: value} for ascending ranks within 1 .. count."""
        values, cumulative, bins = {}, 0, iter(sorted(self._counts))
        for rank in ranks:
            while cumulative < rank:
                bin = next(bins)
                cumulative += self._counts[bin]
            values[rank] = value_of(bin)
        return values


def _nearest_ns(seconds):
    """Round finite seconds to the nearest nanosecond, half up.

    In integers, because the product of two floats is itself rounded and can end on the wrong side of a half.
    """
    numerator, denominator = seconds.as_integer_ratio()
    return (2 * numerator * NANOSECONDS + denominator) // (2 * denominator)


def _nonzero(first_bin, counts):
    """Yield (bin, count) of the counters that are not zero, in words of memory or in a sequence."""
    if not isinstance(counts, memoryview):
        yield from ((bin, count) for bin, count in enumerate(counts, first_bin) if count)
        return
    if (counts.ndim, counts.itemsize, counts.format.strip("QL")) != (1, 8, ""):
        raise ValueError(f"counts must be a row of unsigned 64-bit words, not memory of {counts.format!r}")
    for start in range(0, len(counts), OCTAVE):
        # The copy keeps a page that is being written from changing between the look and the reading.
        octave = counts[start : start + OCTAVE].tobytes()
        if octave != _ZEROS[: len(octave)]:
            yield from _nonzero_words(first_bin + start, octave)


def _nonzero_words(first_bin, words):
    """Yield (bin, count) from bytes, 32 words at a time: a steady phase fills a small part of its octave."""
    for at in range(0, len(words), 256):
        span = words[at : at + 256]
        if span != _ZEROS[: len(span)]:
            for bin, count in enumerate(memoryview(span).cast("Q"), first_bin + at // 8):
                if count:
                    yield bin, count


def _checked_bin(bin):
    """Return a bin within 0 .. OVERFLOW as an int, or raise ValueError."""
    return _checked(bin, 0, OVERFLOW, "a bin")


def _checked(number, low, high, what, *place):
    """Return an integer (not a bool) within low .. high, or raise ValueError saying what was wrong where.

    The message is put together only on failure, and shows no int of a million digits, since turning one
    into text is an error of its own.
    """
    if type(number) is not int:
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise ValueError(f"{what.format(*place)} must be an integer, not a {type(number).__name__}")
        number = index(number)
    if not low <= number <= high:
        shown = number if abs(number) < 2**130 else "a longer number"
        raise ValueError(f"{what.format(*place)} must be within {low} .. {high}, not {shown}")
    return number
