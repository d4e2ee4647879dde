"""Prometheus native histograms of durations, rebinned from fp16 bins.

Bucket i holds the values in (b**(i-1), b**i] with b = GROWTH = 2**(2**-SCHEMA); bin 0 (below 2**-25 s, 30 ns) is the zero
bucket, and OVERFLOW the bucket whose upper bound is infinite. A bin goes whole to the bucket of its value.

The error of a quantile. Let v be the sample of rank ceil(q * count), v' its fp16 rounding, and x what Prometheus
interpolates. Rounding keeps order, so v' has that rank among the rounded samples, and x lies in the bucket of v':
b**(i-1) <= x <= b**i and b**(i-1) < v' <= b**i, hence 1/b <= x/v' < b. From 61 us to 18 h |v'/v - 1| <= 2**-11, hence

    1/b * (1 - 2**-11) <= x/v < b * (1 + 2**-11),  |x/v - 1| < b * (1 + 2**-11) - 1 = ERROR, 4.48 % for schema 4,

for any interpolation within the bucket. Below 61 us 30 ns are added; in the overflow x is infinite.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection
from typing import NamedTuple

from goodput.histograms.histogram import value_of

SCHEMA = 4
GROWTH = 2**2**-SCHEMA
ERROR = GROWTH * (1 + 2**-11) - 1
ZERO_THRESHOLD = 2**-25
# One beyond the bucket of the largest finite float, as Prometheus' own clients have it for infinity.
OVERFLOW = (1024 << SCHEMA) + 1
_PER_OCTAVE = 1 << SCHEMA
#: The bounds from 1/2 to below 1.
FRACTIONS = [2 ** (i / _PER_OCTAVE - 1) for i in range(_PER_OCTAVE)]


class NativeHistogram(NamedTuple):
    """(bucket, samples) in any order, a bucket perhaps several times and None for the zero bucket; and their sum."""

    counts: Collection[tuple[int | None, int]]
    sum_seconds: float

    @property
    def count(self) -> int:
        return sum(count for _, count in self.counts)

    def buckets(self) -> tuple[int, list[tuple[int, int]]]:
        """The samples of the zero bucket, and (bucket, samples) ascending of those that have some."""
        summed: dict[int | None, int] = {}
        for bucket, count in self.counts:
            summed[bucket] = summed.get(bucket, 0) + count
        zeros = summed.pop(None, 0)
        return zeros, sorted(
            (bucket, count) for bucket, count in summed.items() if bucket is not None and count
        )


def bucket_of(seconds: float) -> int:
    """The bucket of a positive duration."""
    if seconds == math.inf:
        return OVERFLOW
    fraction, exponent = math.frexp(seconds)
    return bisect_left(FRACTIONS, fraction) + (exponent - 1) * _PER_OCTAVE


def bucket_of_bin(bin: int) -> int | None:
    """The bucket of an fp16 bin; None is the zero bucket."""
    return bucket_of(value_of(bin)) if bin else None
