"""Histograms of a run's step and phase times by interval, from the lines of its run log.

A sample is the length of one rank's step, or the time of a phase within one step or between two. Lines that stand for
several steps are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from goodput.histograms.histogram import NANOSECONDS, Histogram

INTERVAL_SECONDS = 60
INTERVALS_MAX = 500  # beyond, intervals are doubled, so memory and the log's size are bounded
_NOT_IN_TAGS = re.compile(r"[\s,]+")

# Start and end in unix seconds, "step" or the phase, its samples.
Interval = tuple[float, float, str, Histogram]


def step_histograms(lines: Iterable[bytes]) -> list[Interval]:
    """Intervals in order of time, each with one entry for `step` and one for each phase that occurred."""
    seconds, intervals = INTERVAL_SECONDS, {}
    for line in lines:
        document = json.loads(line)
        for tag, length in _samples(document):
            tags = intervals.setdefault(int(document["time"] // seconds), {})
            tags.setdefault(tag, Histogram()).add_ns(round(length * NANOSECONDS))
        if len(intervals) > INTERVALS_MAX:
            seconds, intervals = 2 * seconds, _doubled(intervals)
    return [
        (k * seconds, (k + 1) * seconds, tag, histogram)
        for k, tags in sorted(intervals.items())
        for tag, histogram in sorted(tags.items())
    ]


def _samples(document: dict) -> Iterator[tuple[str, float]]:
    if document["kind"] == "phase":
        yield _tag(document["phase"]), document["seconds"]
    elif document["kind"] == "step" and document.get("count", 1) == 1:
        yield "step", document["seconds"]
        for phase, seconds in document["phases"].items():
            yield _tag(phase), seconds


def _tag(phase: str) -> str:
    """A phase as a tag of the HDR log, which allows no commas or white space. A phase may be named "step"."""
    tag = _NOT_IN_TAGS.sub("_", phase)
    return "phase_step" if tag == "step" else tag


def _doubled(intervals: dict[int, dict[str, Histogram]]) -> dict[int, dict[str, Histogram]]:
    wider: dict[int, dict[str, Histogram]] = {}
    for k, tags in intervals.items():
        for tag, histogram in tags.items():
            wider.setdefault(k // 2, {}).setdefault(tag, Histogram()).merge(histogram)
    return wider
