"""Steps on the device clock: how a step's length is split, and how its records are joined with the host's.

In: a step's length on the host's clock and its parts on the device's; or, for a reader, step records and the device
records of a page (page.py) by number. Out: whole nanoseconds per phase. A step is as long as the host says and is
divided as the device says, so what has been joined still sums to the rank's wall time, exactly.

Guarantee of `join`: totals grow in every phase and each step's parts sum to its length, whatever the device records
say; one that contradicts the host's is not used. What a look gave is never taken back. A step costs about 20 us.
It does not know events, pages or who asks.
"""

from __future__ import annotations

from operator import add, sub
from typing import NamedTuple

from goodput.rank_page.page import DEVICE_WAIT_STEPS

SILENT_NS = 10 * 10**9  # after which a step of a rank that passes no boundary waits no longer


def apportion(length: int, weights) -> list[int]:
    """`length` divided in proportion to `weights`, in whole parts that sum to it: the largest remainders round up.

    No part is above its weight while `length` is not above their sum. All zero where there is no weight.
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


class Known(NamedTuple):
    """How far a reader has come: the last step given, and what was given for it.

    `host` and `outside` are the host's totals of that step, `totals` and `device_ns` those that were given, and
    `own` (totals, device ns) what the page's device clock says of it, None where it does not.
    """

    number: int
    host: tuple[int, ...]
    outside: tuple[int, ...]
    totals: tuple[int, ...]
    device_ns: int
    own: tuple[tuple[int, ...], int] | None

    def wide(self, width: int) -> Known:
        """With zeros for phases that were defined since."""
        more = (0,) * (width - len(self.host))
        if not more:
            return self
        own = self.own and (self.own[0] + more, self.own[1])
        return Known(
            self.number, self.host + more, self.outside + more, self.totals + more, self.device_ns, own
        )


def nothing(width: int) -> Known:
    """Before the first step."""
    zeros = (0,) * width
    return Known(0, zeros, zeros, zeros, 0, (zeros, 0))


def waits_from(done: int, silent_ns: int) -> int:
    """The first step that waits for its device record, of `done` steps of a rank that lives."""
    return done + 1 if silent_ns > SILENT_NS else max(done - DEVICE_WAIT_STEPS + 1, 1)


def join(known: Known, records, found: dict, base: int, waits: int) -> list[tuple]:
    """(record, totals, device ns, Known) of the steps after `known` whose split is settled, in order.

    `records` have number, totals and outside and ascend; `found` is (totals, device ns) of the device records by
    number; up to step `base` the host's totals hold; steps from `waits` on that have no record end what is given.
    """
    records = [record for record in records if record.number > known.number]
    own = {
        r.number: _checked(found.get(r.number), r.totals, r.outside) if r.number > base else (r.totals, 0)
        for r in records
    }
    if known.own is None:  # It came after all.
        known = known._replace(own=_checked(found.get(known.number), known.host, known.outside))
    ahead = [record for record in records if own[record.number] is not None]
    ahead.reverse()  # The next one is the last.
    given = []
    for record in records:
        while ahead and ahead[-1].number < record.number:
            ahead.pop()
        mine = own[record.number]
        if mine is None and ahead and known.own is not None:
            mine = _between(known, record, ahead[-1], own[ahead[-1].number])
        if mine is None and record.number >= waits:
            break
        known = _follow(known, record, mine)
        given.append((record, known.totals, known.device_ns, known))
    return given


def _checked(own: tuple | None, host, outside) -> tuple | None:
    """What the device clock says of a step, if that can be beside what the host's says."""
    if own is None or sum(own[0]) != sum(host):
        return None
    return own if all(map(int.__ge__, own[0], outside)) else None


def _follow(known: Known, record, own: tuple | None) -> Known:
    """One step further: by the device's clock where it tells both ends of the way, else by the host's."""
    host = list(map(sub, record.totals, known.host))
    outside = list(map(sub, record.outside, known.outside))
    spent, device_ns = host, 0
    if own is not None and known.own is not None:
        device, device_ns = list(map(sub, own[0], known.own[0])), own[1] - known.own[1]
        if all(map(int.__ge__, device, outside)) and 0 <= device_ns <= sum(host) - sum(outside):
            spent = device
        else:
            device_ns = 0
    totals = tuple(map(add, known.totals, spent))
    return Known(record.number, record.totals, record.outside, totals, known.device_ns + device_ns, own)


def _between(known: Known, record, ahead, own: tuple) -> tuple | None:
    """What a step whose device record was overwritten had, in proportion to its length, of what `ahead` has."""
    left = _inside(own[0], known.own[0], ahead.outside, known.outside)
    whole = sum(_inside(ahead.totals, known.host, ahead.outside, known.outside))
    length = sum(_inside(record.totals, known.host, record.outside, known.outside))
    if whole <= 0 or min(left) < 0 or sum(left) != whole or not 0 <= length <= whole:
        return None
    outside = map(sub, record.outside, known.outside)
    totals = tuple(map(add, map(add, known.own[0], outside), apportion(length, left)))
    return totals, known.own[1] + max(own[1] - known.own[1], 0) * length // whole


def _inside(totals, before, outside, outside_before) -> list[int]:
    """What lies within steps of the time between two records."""
    return list(map(sub, map(sub, totals, before), map(sub, outside, outside_before)))
