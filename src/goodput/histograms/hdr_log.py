"""Histograms in hdrhistogram's log format 1.3 (the one with tags), which its tools in every language read.

Each fp16 bin is recorded at its value, to three significant digits, with all its count: that adds at most 0.1 % to the
2**-11 of the bins (0.5 ns below 61 us). Samples of 65 520 s and more are recorded at 65 520 s, since the format has no
infinity; it has no place for the exact sum either. Cost: 300 KiB of counters while a line is written, and one call per
bin. Needs the package hdrhistogram, imported on first use.

    with open("steps.hlog", "w", encoding="utf-8") as file:
        write_log(file, [(0.0, 60.0, "step", steps), (60.0, 120.0, "step", more)])
"""

import math
import re

from goodput.histograms.histogram import COUNT_MAX, NANOSECONDS, OVERFLOW, OVERFLOW_NS, value_of

DIGITS = 3
_MILLISECOND_NS = 1_000_000
_NOT_IN_TAGS = re.compile(r"[\s,]")
_HEADER = """\
#[Histogram log format version 1.3]
#[StartTime: {:.6f} (seconds since epoch)]
"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
"""


def to_hdr(histogram):
    """An `hdrh.histogram.HdrHistogram` of the same samples, in nanoseconds.

    Raises ImportError without hdrhistogram, and ValueError on more than 2**63 - 1 samples, which its counters cannot
    hold.
    """
    if histogram.count > COUNT_MAX:
        raise ValueError(f"hdrhistogram counts to 2**63 - 1 samples, and there are {histogram.count}")
    hdr = _hdr_histogram_class()(1, OVERFLOW_NS, DIGITS)
    for bin, count in histogram.to_pairs():
        hdr.record_value(OVERFLOW_NS if bin == OVERFLOW else round(value_of(bin) * NANOSECONDS), count)
    return hdr


def write_log(file, intervals) -> None:
    """Write a histogram log to a text file: a header, then one line for each (start_s, end_s, tag, histogram).

    Lines are in order of start, since readers stop or skip on an earlier one. Times are seconds since the epoch; a tag
    has no commas or white space. The column "Interval_Max" is in milliseconds, as the format has it. Raises ValueError,
    and writes nothing, when an interval or a tag is invalid, and ImportError without hdrhistogram.
    """
    intervals = sorted(intervals, key=lambda interval: interval[0])
    for start_s, end_s, tag, _ in intervals:
        _check_interval(start_s, end_s, tag)
    _hdr_histogram_class()
    file.write(_HEADER.format(intervals[0][0] if intervals else 0.0))
    for start_s, end_s, tag, histogram in intervals:
        file.write(_line(start_s, end_s, tag, to_hdr(histogram)))


def _line(start_s, end_s, tag, hdr) -> str:
    """One interval. The package's own writer knows no tags, and cuts the maximum to whole milliseconds."""
    max_ms = hdr.get_max_value() / _MILLISECOND_NS
    payload = hdr.encode().decode("ascii")
    return f"Tag={tag},{start_s:.6f},{end_s - start_s:.6f},{max_ms:.6f},{payload}\n"


def _check_interval(start_s, end_s, tag) -> None:
    # A reader's number pattern knows digits and a point only: no sign, exponent, infinity or NaN.
    if not 0 <= start_s <= end_s < math.inf:
        raise ValueError(f"interval {start_s!r} to {end_s!r}: times must satisfy 0 <= start <= end")
    if not tag or _NOT_IN_TAGS.search(tag):
        raise ValueError(f"tag {tag!r}: want text without commas or white space")


def _hdr_histogram_class():
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise ImportError(
            "the hdrhistogram package is needed for this; install it with: pip install goodput-telemetry[hdr]"
        ) from error
    return HdrHistogram
