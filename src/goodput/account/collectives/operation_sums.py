"""Exposed communication by process group and operation, of each rank to the nanosecond.

A rank page sums the exposed time of each operation of each group over the whole process, by the host's clock. Of that the
account has a part in other states: in `startup` what came before the first step, in `lost`, `stall` and `down` what lay in
such time; and a window or the device's clock have another length. So what an attempt has in `communication`,
`straggler` and `bubble` together is divided among its operations. Where their sums, without what came before the
first step, are more, each is cut in proportion, and the division is an estimate. Where they are less and the account is by
the device's clock, the rest is divided in proportion to the times on the device beyond them, where NCCL's profiler plugin
has these: none has more than it took on the device. What is left is NOT_RECORDED.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack, unpack
from sys import intern
from typing import NamedTuple

from goodput.account.collectives.arrival_skew import Key, LeastWaits, split
from goodput.account.collectives.bandwidth import bus_factor, operation_bytes
from goodput.account.states import INDEX
from goodput.slices import AT_A_TIME, Slices, result_of
from goodput.wire.operation_row import UNKNOWN, OperationRow

NOT_RECORDED: Key = ("", "")
OTHER: Key = ("", "other")  # what a report or a table has no row for
NUMBERS = len(OperationRow._fields) - 2
_ISSUE, _DEVICE = (OperationRow._fields.index(name) - 2 for name in ("issue_ns", "device_ns"))
ROWS_MAX = 32
_FASTEST, _UNMEASURED = 14, 16  # places in OperationTime
STATES = ("communication", "straggler", "bubble")  # that are divided
_EXPOSED = tuple(INDEX[state] for state in STATES)
_STRAGGLER = INDEX["straggler"]


class OperationSums(NamedTuple):
    """What each operation of each group has cost a process so far.

    `values` has NUMBERS 64-bit integers a key, those of an OperationRow from `calls` on; accounts that were stored before
    the last of these were known have fewer.
    """

    keys: tuple[Key, ...]
    values: bytes


NO_SUMS = OperationSums((), b"")


class Exposed(NamedTuple):
    """What one attempt has exposed: its sums, and the ns that the account has in `communication`, `straggler` and `bubble`.

    `straggler_ns` is the part in `straggler`. Ranks of one `unit` are compared: those of one attempt and group, in a
    pipeline of one stage. `is_on_device`: the device's clock has divided some of its steps.
    """

    sums: OperationSums
    ns: int
    straggler_ns: int = 0
    unit: str = ""
    is_on_device: bool = False


class OperationTime(NamedTuple):
    """Sums over ranks: `calls`, `bytes` of whole processes, `ranks` that made some, and the divided time, GPU-ns.

    `size` is that of the groups, 0 if it is not known or differs. `least_bytes` and `least_ns` are the bytes and the
    exposed time of the rank that waited least a byte, for whole processes; `local` of the groups' ranks are on one node,
    0 if it is not known or differs, and `link_rate` is the largest of their nodes' in bytes/s, 0 if none is known. Of the
    divided time `skew_ns` was waiting for other ranks and `transfer_ns` what all ranks paid; which of the two the rest
    was is not known. `hidden_ns` and `hidden_max_ns` are bounds of what was hidden behind other work, for whole
    processes; UNKNOWN if one rank's are, as is `device_ns`, the time on the device from the first step on. `fastest_bytes`
    and `fastest_ns` are bytes and time on the device of the rank that took least a byte. `unmeasured` ranks wait on their
    device alone, where nobody has measured it.
    """

    calls: int
    bytes: int
    ranks: int
    gpu_ns: int
    size: int = 0
    least_bytes: int = 0
    least_ns: int = 0
    skew_ns: int = 0
    transfer_ns: int = 0
    hidden_ns: int = UNKNOWN
    hidden_max_ns: int = UNKNOWN
    local: int = 0
    link_rate: int = 0
    device_ns: int = UNKNOWN
    fastest_bytes: int = 0
    fastest_ns: int = 0
    unmeasured: int = 0

    @property
    def is_known(self) -> bool:
        """Whether its time is: 0 is no measurement where ranks that nobody has measured may have waited."""
        return self.gpu_ns > 0 or not self.unmeasured


Operations = dict[Key, OperationTime]  # of all ranks


def sums_of(rows: Iterable[Sequence]) -> OperationSums:
    """Sums from rows as OperationRow, or of its first fields."""
    listed = [OperationRow(*row) for row in rows]
    if not listed:
        return NO_SUMS
    numbers = [number for row in listed for number in row[2:]]
    return OperationSums(tuple((row[0], row[1]) for row in listed), pack(f"<{len(numbers)}q", *numbers))


def rows_of(sums: OperationSums) -> list[OperationRow]:
    """The rows of which sums were made."""
    numbers, width = _numbers(sums), _width(sums)
    return [OperationRow(*key, *numbers[width * i : width * (i + 1)]) for i, key in enumerate(sums.keys)]


def issue_times(sums: OperationSums) -> Iterable[tuple[Key, int]]:
    """By key, `issue_ns` of OperationRow; nothing where it was not stored."""
    width = _width(sums)
    return zip(sums.keys, _numbers(sums)[_ISSUE::width], strict=True) if width > _ISSUE else ()


def exposed_of(
    sums: OperationSums, states: Sequence[int], unit: str = "", is_on_device: bool = False
) -> Exposed:
    """The exposed time of an attempt with these sums and these ns by state."""
    return Exposed(sums, sum(states[i] for i in _EXPOSED), states[_STRAGGLER], intern(unit), is_on_device)


def divide(exposed: Exposed) -> tuple[list[int], int]:
    """The ns of each key, and what is left; together they are `exposed.ns`."""
    parts = _parts(exposed.sums)
    known = sum(parts)
    if known <= exposed.ns:
        return _add_device(parts, exposed, exposed.ns - known)
    cut = [ns * exposed.ns // known for ns in parts]
    # What rounding leaves, less than a ns a key, goes to the largest.
    cut[parts.index(max(parts))] += exposed.ns - sum(cut)
    return cut, 0


def _add_device(parts: list[int], exposed: Exposed, left: int) -> tuple[list[int], int]:
    """`parts` with what is left divided among operations by their times on the device, and what is left of it then."""
    most = _beyond(exposed, parts) if left and exposed.is_on_device else []
    whole = sum(most)
    if whole <= left:
        return [ns + more for ns, more in zip(parts, most, strict=True)] if whole else parts, left - whole
    shares = [left * more // whole for more in most]
    shares[shares.index(max(shares))] += left - sum(shares)
    return [ns + more for ns, more in zip(parts, shares, strict=True)], 0


def _beyond(exposed: Exposed, parts: list[int]) -> list[int]:
    """By how much the time of each key on the device exceeds its part; barriers are all-reduces there."""
    keys, device = exposed.sums.keys, _device(exposed.sums)
    most = [max(ns - part, 0) for ns, part in zip(device, parts, strict=True)] if device else []
    for at, (group, operation) in enumerate(keys if any(most) else ()):
        if operation == "barrier" and (group, "all_reduce") in keys:
            other = keys.index((group, "all_reduce"))
            most[other] = max(most[other] - parts[at], 0)
    return most


def is_cut(exposed: Exposed) -> bool:
    """Whether the operations had more time than the account has."""
    return sum(_parts(exposed.sums)) > exposed.ns


def comparing(ranks: Iterable[Iterable[Exposed]]) -> Slices[LeastWaits]:
    """Which rank has waited least in each operation, in slices."""
    found = LeastWaits()
    for at, attempts in enumerate(ranks):
        if at % AT_A_TIME == 0:
            yield
        for one in attempts:
            if one.sums.keys:
                found.add(one.unit, one.sums.keys, _calls(one.sums), _parts(one.sums))
    return found


def _split(exposed: Exposed, waits: list[int], least: LeastWaits | None) -> tuple[list[int], list[int]]:
    """The ns of each key, and last of what is not recorded, that were skew and transfer; see arrival_skew.split."""
    if not exposed.straggler_ns:
        return [0] * len(waits), waits
    beyond = [0] * (len(waits) - 1)
    if least is not None and beyond:
        raw = _parts(exposed.sums)
        beyond = least.beyond(exposed.unit, exposed.sums.keys, _calls(exposed.sums), raw)
        if sum(raw) > exposed.ns:
            beyond = [ns * part // max(whole, 1) for ns, part, whole in zip(beyond, waits, raw, strict=False)]
    return split(waits, exposed.straggler_ns, [*beyond, 0])


def of_rank(exposed: Iterable[Exposed], least: LeastWaits | None = None) -> dict[Key, OperationTime]:
    """A rank's attempts summed, for one device; NOT_RECORDED only where time is left."""
    return by_operation([(1, exposed)], least)


def by_operation(
    ranks: Iterable[tuple[int, Iterable[Exposed]]], least: LeastWaits | None = None
) -> dict[Key, OperationTime]:
    """Ranks with their devices summed by group and operation. {} where no rank has recorded any call."""
    return result_of(summing(ranks, least))


def summing(
    ranks: Iterable[tuple[int, Iterable[Exposed]]], least: LeastWaits | None = None
) -> Slices[dict[Key, OperationTime]]:
    """As `by_operation`, in slices; a rank with five operations takes some 20 us."""
    found: dict[Key, list[int]] = {}
    left, is_known = [0, 0, 0], False
    for at, (devices, attempts) in enumerate(ranks):
        if at % AT_A_TIME == 0:
            yield
        mine: dict[Key, list[int]] = {}
        for one in attempts:
            parts, rest = divide(one)
            skews, transfers = _split(one, [*parts, rest], least)
            is_known |= bool(parts)
            for i, ns in enumerate((rest, skews[-1], transfers[-1])):
                left[i] += ns * devices
            for row, *spent in zip(rows_of(one.sums), parts, skews, transfers, strict=False):
                _add_row(found, mine, row, [ns * devices for ns in spent], devices)
                if row.queued and not spent[0] and not (one.is_on_device and row.device_ns >= 0):
                    found[row.group, row.operation][_UNMEASURED] += 1
        _add_least(found, mine)
    if not is_known:
        return {}
    result = {key: OperationTime(*row) for key, row in found.items()}
    if left[0]:
        result[NOT_RECORDED] = OperationTime(0, 0, 0, left[0], skew_ns=left[1], transfer_ns=left[2])
    return result


def _add_row(
    found: dict[Key, list[int]], mine: dict[Key, list[int]], row: OperationRow, spent: list[int], devices: int
) -> None:
    """Add an operation of an attempt: `spent` are GPU-ns of the divided time, of its skew and of its transfer."""
    key = row.group, row.operation
    total = found.get(key)
    if total is None:
        total = found[key] = [0, 0, 0, 0, row.size, 0, 0, 0, 0, 0, 0, row.local, 0, 0, 0, 0, 0]
    total[0] += row.calls
    total[1] += row.bytes
    total[3] += spent[0]
    total[4] = total[4] if total[4] == row.size else 0
    total[11] = total[11] if total[11] == row.local else 0
    total[12] = max(total[12], row.link_rate)
    total[7] += spent[1]
    total[8] += spent[2]
    for at, ns in ((9, row.hidden_ns), (10, row.hidden_max_ns), (13, row.device_ns)):
        total[at] = UNKNOWN if ns < 0 or total[at] < 0 else total[at] + ns * devices
    own = mine.setdefault(key, [0, 0, 0, 0])
    if not row.queued:  # Else the host does not wait for the bytes.
        own[0] += row.bytes
        own[1] += row.exposed_ns
    own[2] += row.device_bytes
    own[3] += max(row.device_ns, 0)


def _add_least(found: dict[Key, list[int]], mine: dict[Key, list[int]]) -> None:
    """Count a rank in the rows of its operations, and keep its bytes and time where it took least for a byte."""
    for key, own in mine.items():
        row = found[key]
        row[2] += 1
        for (bytes_, ns), at in ((own[:2], 5), (own[2:], _FASTEST)):
            if bytes_ and ns and (not row[at + 1] or ns * row[at] < row[at + 1] * bytes_):
                row[at], row[at + 1] = bytes_, ns


def bus_rate_max(operation: str, row: OperationTime) -> float | None:
    """Bytes a second that a rank's links carried at most, as the bus bandwidth of nccl-tests; None if not known.

    By the exposed time of the rank that waited least: a part of the transfer may be hidden behind compute, so it took
    at least that long.
    """
    return _bus_rate(operation, row.size, row.least_bytes, row.least_ns)


def bus_rate_min(operation: str, row: OperationTime) -> float | None:
    """As `bus_rate_max`, what they carried at least, by the time on the device, in which a rank waits for others too."""
    return _bus_rate(operation, row.size, row.fastest_bytes, row.fastest_ns)


def _bus_rate(operation: str, ranks: int, part_bytes: int, ns: int) -> float | None:
    size = operation_bytes(operation, ranks, part_bytes)
    return 1e9 * size * bus_factor(operation, ranks) / ns if ranks >= 2 and size and ns else None


def largest(times: dict[Key, OperationTime], most: int = ROWS_MAX) -> list[tuple[Key, OperationTime]]:
    """The rows with most time first, at most so many; the others as OTHER, then NOT_RECORDED."""
    last = [(key, times[key]) for key in (NOT_RECORDED,) if key in times]
    named = [(key, row) for key, row in times.items() if key not in (OTHER, NOT_RECORDED)]
    named.sort(key=lambda item: (-item[1].gpu_ns, -item[1].bytes, item[0]))
    rest = [row for _, row in named[most:]] + [times[key] for key in (OTHER,) if key in times]
    if rest:
        summed = OperationTime(
            sum(row.calls for row in rest),
            sum(row.bytes for row in rest),
            max(row.ranks for row in rest),
            sum(row.gpu_ns for row in rest),
            skew_ns=sum(row.skew_ns for row in rest),
            transfer_ns=sum(row.transfer_ns for row in rest),
            unmeasured=sum(row.unmeasured for row in rest),
        )
        last.insert(0, (OTHER, summed))
    return [*named[:most], *last]


def basis(ranks: Sequence[Iterable[Exposed]], device_ns: Iterable[int]) -> str:
    """Whether the division is measured, estimated or unknown: records have the host's clock, not a device's.

    `ranks` are the attempts of each, `device_ns` the length of its steps that the device's clock divided.
    """
    if not any(one.sums.keys for attempts in ranks for one in attempts):
        return "unknown"
    return "estimated" if any(device_ns) or any(is_cut(one) for own in ranks for one in own) else "measured"


def skew_basis(times: Operations) -> str:
    """Whether it is estimated or unknown how much of the waiting was for the last rank to arrive."""
    return "estimated" if any(row.skew_ns or row.transfer_ns for row in times.values()) else "unknown"


def _numbers(sums: OperationSums) -> tuple[int, ...]:
    return unpack(f"<{len(sums.values) // 8}q", sums.values)


def _parts(sums: OperationSums) -> list[int]:
    """The exposed ns of each key from the first step on."""
    numbers, width = _numbers(sums), _width(sums)
    return [max(ns - before, 0) for ns, before in zip(numbers[2::width], numbers[3::width], strict=True)]


def _device(sums: OperationSums) -> tuple[int, ...]:
    """`device_ns` of each key, () where it was not stored."""
    width = _width(sums)
    return _numbers(sums)[_DEVICE::width] if width > _DEVICE else ()


def _width(sums: OperationSums) -> int:
    """The numbers of a key."""
    return len(sums.values) // 8 // len(sums.keys) if sums.keys else NUMBERS


def _calls(sums: OperationSums) -> tuple[int, ...]:
    return _numbers(sums)[:: _width(sums)]
