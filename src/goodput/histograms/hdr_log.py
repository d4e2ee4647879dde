"""Histograms as hdrhistogram objects, and as a log that hdrhistogram's own tools read.

In: `goodput.histograms.histogram.Histogram`, and for a log the interval and tag of each.  Out: `hdrh` histograms of
integer nanoseconds, and the text of a histogram log, format 1.3 (the one with tags), which
`hdrh.log.HistogramLogReader` and the readers of the Java, Go, C# and JavaScript packages accept.

Guarantee: each fp16 bin is recorded at its value, rounded to a nanosecond, with all its count.  hdrhistogram
then keeps it to `digits` significant digits (1 ns to 65 520 s at any value), so three digits add at most
0.1 % to our own 2**-11, or 0.5 ns and 30 ns below 61 us.  Samples of 65 520 s and more are recorded at
65 520 s, because hdrhistogram has no infinity.  The exact sum is not carried: the format has no place for it.
Cost: 300 KiB of counters per histogram at three digits (31 MiB at five), and one call per bin.

What it does not know: clocks.  Interval times are seconds on whatever clock the caller uses, by convention
since the epoch.  Needs the PyPI package hdrhistogram, imported on first use only.

    with open("steps.hlog", "w", encoding="utf-8") as file:
        write_log(file, [(0.0, 60.0, "step", steps), (60.0, 120.0, "step", more)])
"""

import math
import re

from goodput.histograms.histogram import COUNT_MAX, NANOSECONDS, OVERFLOW, OVERFLOW_NS, value_of

_MILLISECOND_NS = 1_000_000
_NOT_IN_TAGS = re.compile(r"[\s,]")
_HEADER = """\
#[Histogram log format version 1.3]
#[StartTime: {:.6f} (seconds since epoch)]
"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
"""


def to_hdr(histogram, digits=3):
    """Return an `hdrh.histogram.HdrHistogram` of the same samples, in nanoseconds.

    `digits` is its number of significant digits, 1 to 5.  Raises ImportError when hdrhistogram is missing,
    and ValueError on other digits or on more than 2**63 - 1 samples, which its counters cannot hold.
    """
    if digits not in (1, 2, 3, 4, 5):
        raise ValueError(f"hdrhistogram keeps 1 to 5 significant digits, not {digits!r}")
    if histogram.count > COUNT_MAX:
        raise ValueError(f"hdrhistogram counts to 2**63 - 1 samples, and there are {histogram.count}")
    hdr = _hdr_histogram_class()(1, OVERFLOW_NS, digits)
    for bin, count in histogram.to_pairs():
        hdr.record_value(OVERFLOW_NS if bin == OVERFLOW else round(value_of(bin) * NANOSECONDS), count)
    return hdr


def write_log(file, intervals, digits=3):
    """Write a histogram log to a text file: header, then one line for each (start_s, end_s, tag, histogram).

    Lines are in order of start, since readers stop or skip on an earlier one.  Times are in seconds, start_s
    from 0 on and end_s no earlier than it; a tag is text without commas or white space, or None for no tag.
    The "Interval_Max" column is in milliseconds, as the format has it.  Raises ValueError, and writes
    nothing, when an interval or a tag is wrong; ImportError when hdrhistogram is missing.
    """
    intervals = list(intervals)
    for position, (start_s, end_s, tag, _) in enumerate(intervals):
        _check_interval(f"intervals[{position}]", start_s, end_s, tag)
    intervals.sort(key=lambda interval: interval[0])
    lines = [_line(start_s, end_s, tag, to_hdr(counts, digits)) for start_s, end_s, tag, counts in intervals]
    file.write(_HEADER.format(intervals[0][0] if intervals else 0.0))
    file.writelines(lines)


def _line(start_s, end_s, tag, hdr):
    """Return the log line of one interval.

    The package's own writer is not used: it knows no tags, and cuts the maximum to whole milliseconds.
    """
    prefix = f"Tag={tag}," if tag else ""
    max_ms = hdr.get_max_value() / _MILLISECOND_NS
    return f"{prefix}{start_s:.6f},{end_s - start_s:.6f},{max_ms:.6f},{hdr.encode().decode('ascii')}\n"


def _check_interval(where, start_s, end_s, tag):
    """Raise ValueError unless an interval and its tag can be written so that a reader gets them back."""
    # A reader's number pattern knows digits and a point only: no sign, exponent, infinity or NaN.
    if not 0 <= start_s <= end_s < math.inf:
        raise ValueError(f"{where}: its times must satisfy 0 <= start <= end, unlike {start_s!r}, {end_s!r}")
    if tag is not None and (not isinstance(tag, str) or not tag or _NOT_IN_TAGS.search(tag)):
        raise ValueError(f"{where}: a tag must be text without commas or white space, not {tag!r}")


def _hdr_histogram_class():
    """Import hdrhistogram's histogram, or say how to install it."""
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise ImportError(
            "the hdrhistogram package is needed for this; install it with: pip install goodput-telemetry[hdr]"
        ) from error
    return HdrHistogram
