"""Merges step records of the host clock with those of the device clock.

A step is as long as the host measured and is divided into phases as the device measured, so the merged totals still
sum to the rank's wall time, to the nanosecond. They grow in every phase whatever the device records hold: a record
that contradicts the host's is ignored. A merged step is never revised later. About 20 us a step.
"""

from __future__ import annotations

from operator import add, sub
from typing import NamedTuple

from goodput.rank_page.page import DEVICE_WAIT_STEPS

# A rank that has passed no phase boundary for this long: its steps no longer wait for their device records.
SILENT_NS = 10 * 10**9


def apportion(length: int, weights) -> list[int]:
    """`length` divided in proportion to `weights`, as integers that sum to it (largest remainder method).

    No part exceeds its weight while `length` does not exceed their sum. All zero if the weights are.
    """
    total = sum(weights)
    if total <= 0:
        return [0] * len(weights)
    parts = [length * weight // total for weight in weights]
    short = length - sum(parts)
    if short:
        by_rest = sorted(range(len(parts)), key=lambda i: (-(length * weights[i] % total), i))
        for i in by_rest[:short]:
            parts[i] += 1
    return parts


# What the device clock recorded at a step's end: cumulative ns per phase, and ns of steps divided by the device.
DeviceTotals = tuple[tuple[int, ...], int]


class Known(NamedTuple):
    """A reader's position: the last merged step.

    `host` and `outside` are the host's totals of that step, `totals` and `device_ns` the merged ones, and `device`
    the device clock's, None if there is no valid record.
    """

    number: int
    host: tuple[int, ...]
    outside: tuple[int, ...]
    totals: tuple[int, ...]
    device_ns: int
    device: DeviceTotals | None

    def widened(self, width: int) -> Known:
        """A copy with zeros for phases that were defined since."""
        more = (0,) * (width - len(self.host))
        if not more:
            return self
        return self._replace(
            host=self.host + more,
            outside=self.outside + more,
            totals=self.totals + more,
            device=self.device and (self.device[0] + more, self.device[1]),
        )


def before_first(width: int) -> Known:
    zeros = (0,) * width
    return Known(0, zeros, zeros, zeros, 0, (zeros, 0))


def first_waiting(done: int, silent_ns: int) -> int:
    """The first of `done` steps of a live rank that still waits for its device record."""
    return done + 1 if silent_ns > SILENT_NS else max(done - DEVICE_WAIT_STEPS + 1, 1)


def merge(known: Known, records, found: dict[int, DeviceTotals], base: int, waits: int) -> list[tuple]:
    """(record, totals, device ns, Known) of the steps after `known` whose division is settled, in order.

    `records` have number, totals and outside, in ascending order; `found` holds the device records by number. The
    host's totals hold up to step `base`. The first step from `waits` on without a device record ends the list.
    """
    records = [record for record in records if record.number > known.number]
    device = {
        r.number: _valid(found.get(r.number), r.totals, r.outside) if r.number > base else (r.totals, 0)
        for r in records
    }
    if known.device is None:  # Its record may have arrived since.
        known = known._replace(device=_valid(found.get(known.number), known.host, known.outside))
    ahead = [(record, at_end) for record in records if (at_end := device[record.number]) is not None]
    ahead.reverse()  # The next one is the last.
    merged = []
    for record in records:
        while ahead and ahead[-1][0].number < record.number:
            ahead.pop()
        at_end = device[record.number]
        if at_end is None and ahead and known.device is not None:
            at_end = _interpolated(known, known.device, record, *ahead[-1])
        if at_end is None and record.number >= waits:
            break
        known = _advanced(known, record, at_end)
        merged.append((record, known.totals, known.device_ns, known))
    return merged


def _valid(device: DeviceTotals | None, host, outside) -> DeviceTotals | None:
    """The device's totals, unless they contradict the host's."""
    if device is None or sum(device[0]) != sum(host):
        return None
    return device if all(map(int.__ge__, device[0], outside)) else None


def _advanced(known: Known, record, device: DeviceTotals | None) -> Known:
    """One step further: divided by the device if it knows both ends of the step, else by the host."""
    host = list(map(sub, record.totals, known.host))
    outside = list(map(sub, record.outside, known.outside))
    spent, device_ns = host, 0
    if device is not None and known.device is not None:
        by_device, ns = list(map(sub, device[0], known.device[0])), device[1] - known.device[1]
        if all(map(int.__ge__, by_device, outside)) and 0 <= ns <= sum(host) - sum(outside):
            spent, device_ns = by_device, ns
    totals = tuple(map(add, known.totals, spent))
    return Known(record.number, record.totals, record.outside, totals, known.device_ns + device_ns, device)


def _interpolated(
    known: Known, device: DeviceTotals, record, ahead, at_ahead: DeviceTotals
) -> DeviceTotals | None:
    """Device totals of a step whose record was overwritten: its share, by length, of the time up to step `ahead`.

    `device` are the device's totals at `known`, `at_ahead` those at `ahead`. None if they contradict the host's.
    """
    left = _inside(at_ahead[0], device[0], ahead.outside, known.outside)
    whole = sum(_inside(ahead.totals, known.host, ahead.outside, known.outside))
    length = sum(_inside(record.totals, known.host, record.outside, known.outside))
    if whole <= 0 or min(left) < 0 or sum(left) != whole or not 0 <= length <= whole:
        return None
    outside = map(sub, record.outside, known.outside)
    totals = tuple(map(add, map(add, device[0], outside), apportion(length, left)))
    return totals, device[1] + max(at_ahead[1] - device[1], 0) * length // whole


def _inside(totals, before, outside, outside_before) -> list[int]:
    """Time per phase within steps, between two records."""
    return list(map(sub, map(sub, totals, before), map(sub, outside, outside_before)))
