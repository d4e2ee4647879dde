"""The records in a rank page's rings: from the words of one slot to a checked value."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import le
from typing import NamedTuple

from goodput.rank_page import page


class StepRecord(NamedTuple):
    """A completed step: its number in the attempt, index, monotonic bounds and cumulative ns per phase.

    A step's length is divided into phases by the device clock if there is one; `device_ns` is the length of all steps
    that it has divided so far.
    """

    number: int
    step: int
    start_ns: int
    end_ns: int
    samples: int
    totals: tuple[int, ...]
    outside: tuple[int, ...]
    device_ns: int = 0


@dataclass(frozen=True)
class EventRecord:
    number: int
    kind: str
    time_ns: int
    step: int
    text: str


@dataclass(frozen=True)
class Snapshot:
    """A page's content at one moment. Times are the rank's monotonic ns, totals ns per phase index.

    `totals` continue from the last of `steps`, on the device clock if there is one. `host_totals` are the host
    clock's; `device_totals` are the device clock's at the last step with a record. Both only grow.
    """

    identity: dict
    phases: tuple[str, ...]
    phase_states: dict[str, str]
    last_ns: int
    phase: str
    steps_done: int
    samples: int
    step_next: int
    step_start_ns: int
    ended: str
    end_ns: int
    cost_ns: int
    background: int
    totals: tuple[int, ...]
    background_totals: tuple[int, ...]
    drops: dict[str, int]
    host_totals: tuple[int, ...] = ()
    device_totals: tuple[int, ...] = ()
    device_ns: int = 0
    device_state: str = ""  # one of page.DEVICE_STATES
    device_why: str = ""  # why it is not active
    loader: dict[str, int] = field(default_factory=dict)  # loader_words.LOADER
    sampling: dict[str, int] = field(default_factory=dict)  # page.SAMPLING
    workers: tuple[dict[str, int], ...] = ()
    steps: list[StepRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)

    def unix_ns(self, mono_ns: int) -> int:
        """A monotonic time of this rank on its host's wall clock, anchored once at the start."""
        return self.identity["start_unix_ns"] + mono_ns - self.identity["start_mono_ns"]


def ring_runs(first: int, last: int, ring: int) -> list[tuple[int, int]]:
    """Slots of the records numbered first..last (from 1), as at most two runs (slot, count)."""
    begin, count = (first - 1) % ring, last - first + 1
    if begin + count <= ring:
        return [(begin, count)]
    return [(begin, ring - begin), (0, count - (ring - begin))]


def step_records(slots: bytes, width: int, at_outside: int = page.R_OUTSIDE) -> Iterator[StepRecord | None]:
    """Of each slot its record if that is sealed and plausible, None if it is torn, overwritten or out of range."""
    for fields in _step_format(width, at_outside).iter_unpack(slots):
        number, biased, start, end, samples = fields[: page.R_TOTALS]
        totals, outside = fields[page.R_TOTALS : page.R_TOTALS + width], fields[page.R_TOTALS + width : -1]
        is_valid = (
            0 < number == fields[-1]
            and start <= end < page.NS_MAX
            and page.STEP_BIAS <= biased < page.STEP_BIAS + page.NS_MAX
            and samples < page.NS_MAX
            and max(totals) < page.NS_MAX
            and all(map(le, outside, totals))
        )
        step = biased - page.STEP_BIAS
        yield StepRecord(number, step, start, end, samples, totals, outside) if is_valid else None


@lru_cache(64)
def _step_format(width: int, at_outside: int) -> struct.Struct:
    """A slot's words up to its totals, `width` totals, as many parts outside steps, and its seal."""
    unused, rest = at_outside - page.R_TOTALS - width, page.R_SEAL - at_outside - width
    return struct.Struct(f"={page.R_TOTALS + width}Q{8 * unused}x{width}Q{8 * rest}xQ")


def device_record(words: memoryview, width: int) -> tuple[int, tuple[int, ...], int] | None:
    """(number, totals, device ns) of a device record if it is sealed and plausible, else None."""
    number, device_ns = words[page.D_NUMBER], words[page.D_DEVICE_NS]
    totals = tuple(words[page.D_TOTALS : page.D_TOTALS + width])
    if number == 0 or number != words[page.D_SEAL] or max(*totals, device_ns) >= page.NS_MAX:
        return None
    return number, totals, device_ns


def sampling_of(live: memoryview) -> dict[str, int]:
    """The words of page.SAMPLING by name. Raises ValueError for a value out of range."""
    at = page.W_SAMPLING - page.LIVE
    found = dict(zip(page.SAMPLING, live[at : at + len(page.SAMPLING)], strict=True))
    if max(found.values()) >= page.NS_MAX:
        raise ValueError("a count of the overhead budget is impossible")
    return found
