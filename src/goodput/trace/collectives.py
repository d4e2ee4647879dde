"""Collectives of traces by process group and operation: calls, bytes, time exposed and hidden, bandwidth, arrivals.

On a device the times of all operations sum to its `communication` and what of it is hidden, to the nanosecond: time in
which several collectives run counts for the one that began first. Calls are compared between ranks by group and sequence
number; where a trace has none (older versions of PyTorch, gloo), by their order in the group within a step, and steps in which
ranks have different numbers of calls are left out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from goodput.account.collectives.bandwidth import bus_factor, operation_bytes
from goodput.trace.arrivals import Clocks, Skew, align, skew_of
from goodput.trace.calls import HOST, TEXT_MAX, UNKNOWN, Key
from goodput.trace.columns import Columns
from goodput.trace.operation_names import POINT_TO_POINT, TOGETHER
from goodput.trace.spans import intersect, length, length_before
from goodput.trace.states import Work
from goodput.trace.steps import WHOLE

ROWS_MAX = 4096
COMPARED_MAX = 50_000  # calls of a file, some 250 bytes each


class Row(NamedTuple):
    """What a group's operation cost on a device, in the steps. `bytes` are of the `sized` calls. "", "": in no call."""

    group: str
    operation: str
    size: int
    calls: int
    sized: int
    bytes: int
    exposed_ns: int
    hidden_ns: int


class Call(NamedTuple):
    """A call of one rank, to compare: `place` is its sequence number or its place in the step, `step` "" for the former."""

    operation: str
    step: str
    place: int
    start: int
    end: int
    bytes: int


@dataclass(slots=True)
class RankCalls:
    """What a file has of collectives, beyond its document.

    `groups` are by `_identity`; `only` is the one group to which calls without a group belong, if there is just one.
    """

    rank: int
    file: str
    world_size: int | None
    only: Key | None = None
    rows: list[Row] = field(default_factory=list)
    groups: dict[tuple, list[Call]] = field(default_factory=dict)


def label_of(key: Key) -> str:
    """What a group is called: its description, unless it has none of its own."""
    return key.description if key.description not in ("", "undefined") else key.name


def only_group(columns: Columns, about: dict) -> Key | None:
    """The process group of a trace without devices that lists just one: that of gloo's calls, which name none."""
    place = about.get("distributedInfo")
    listed = place.get("pg_config") if isinstance(place, dict) else None
    if columns.devices or not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        return None
    name, ranks = listed[0].get("pg_name"), next(iter(_configured(about).values()), ())
    if not isinstance(name, str) or not ranks:
        return None
    return Key(name[:TEXT_MAX], str(listed[0].get("pg_desc", ""))[:TEXT_MAX], ranks, len(ranks), "")


def rows_of(columns: Columns, place: int | str, work: Work, steps: array) -> list[Row]:
    """The rows of a device, or of a process without devices, of which `steps` are spans."""
    calls = columns.calls
    inside = intersect(work.communication, steps)
    behind = intersect(inside, work.compute)
    covered, hidden, begun = length_before(inside), length_before(behind), _contains(steps)
    found: dict[tuple[str, str, int], list[int]] = {}
    until = min(calls.starts, default=0)
    for i in calls.of(place, bool(columns.devices)):
        start, end = max(calls.starts[i], until), calls.ends[i]
        in_all = in_hidden = 0
        if start < end:
            in_all, in_hidden = covered(end) - covered(start), hidden(end) - hidden(start)
            until = end
        is_begun = begun(calls.starts[i])
        if not is_begun and not in_all:
            continue
        key = calls.known[calls.keys[i]]
        row = found.setdefault((label_of(key), key.operation, key.size or len(key.ranks)), [0] * 5)
        size = calls.sizes[i]
        row[0] += is_begun
        row[1] += is_begun and size != UNKNOWN
        row[2] += size if is_begun and size != UNKNOWN else 0
        row[3] += in_all - in_hidden
        row[4] += in_hidden
    rows = [Row(*name, *numbers) for name, numbers in found.items()]
    rest_hidden = length(behind) - sum(row.hidden_ns for row in rows)
    rest = length(inside) - length(behind) - sum(row.exposed_ns for row in rows)
    return rows + ([Row("", "", 0, 0, 0, 0, rest, rest_hidden)] if rest or rest_hidden else [])


def _contains(spans: array) -> Callable[[int], bool]:
    return lambda at: bool(bisect_right(spans, at) & 1)


def comparable(
    columns: Columns, launched_at: Callable[[int, int], int], about: dict
) -> dict[tuple, list[Call]]:
    """The calls to compare with other ranks, by group. `launched_at` gives the launch by correlation id and start."""
    calls, configured = columns.calls, _configured(about)
    marks = sorted((mark.start, mark.end, mark.name) for mark in columns.steps)
    starts = [mark[0] for mark in marks]
    found: dict[tuple, list[Call]] = {}
    for i in calls.order()[:COMPARED_MAX]:
        key = calls.known[calls.keys[i]]
        if calls.sources[i] == HOST or key.operation in POINT_TO_POINT:
            continue
        start, sequence = calls.starts[i], calls.sequences[i]
        step = "" if sequence != UNKNOWN else WHOLE
        if sequence == UNKNOWN and marks:
            which = bisect_right(starts, launched_at(calls.correlations[i], start)) - 1
            if which < 0:
                continue
            step = marks[which][2]
        group = _identity(key, configured, calls.sizes[i])
        call = Call(key.operation, step, sequence, start, calls.ends[i], calls.sizes[i])
        found.setdefault(group, []).append(call)
    return {group: _numbered(own) for group, own in found.items()}


def _numbered(calls: list[Call]) -> list[Call]:
    """The calls, those without a sequence number with their place in the step."""
    seen: dict[str, int] = {}
    out = []
    for call in calls:
        if call.place == UNKNOWN:
            seen[call.step] = seen.get(call.step, 0) + 1
            call = call._replace(place=seen[call.step])
        out.append(call)
    return out


def _configured(about: dict) -> dict[str, tuple[int, ...]]:
    """The ranks of the groups that the trace lists, by name."""
    place = about.get("distributedInfo")
    listed = place.get("pg_config") if isinstance(place, dict) else None
    found = {}
    for one in listed if isinstance(listed, list) else ():
        if (
            isinstance(one, dict)
            and isinstance(one.get("ranks"), list)
            and isinstance(one.get("pg_name"), str)
        ):
            found[one["pg_name"]] = (
                tuple(one["ranks"]) if all(type(rank) is int for rank in one["ranks"]) else ()
            )
    return found


def _identity(key: Key, configured: dict[str, tuple[int, ...]], size: int) -> tuple[Hashable, ...]:
    """What identifies a group in all ranks; calls of an unknown group are identified by operation and bytes."""
    ranks = key.ranks or configured.get(key.name, ())
    if not key.name:
        return ("", "", 0, (), key.operation, size)
    return (label_of(key), key.name, key.size or len(ranks), ranks)


class _Compared:
    """The calls of one group and operation that were compared."""

    def __init__(self):
        self.calls: list[dict[int, tuple[int, int]]] = []
        self.bytes: list[float | None] = []
        self.spread_ns = 0


def compare(ranks: list[RankCalls]) -> list[dict]:
    """Rows for the document, those with most exposed time first."""
    sums: dict[tuple[str, str, int], list[int]] = {}
    ranks = _named(ranks)
    for rank in ranks:
        seen = set()
        for row in rank.rows:
            name = row.group, row.operation, row.size
            found = sums.setdefault(name, [0] * 6)
            for i, number in enumerate((row.calls, row.sized, row.bytes, row.exposed_ns, row.hidden_ns)):
                found[i] += number
            found[5] += name not in seen
            seen.add(name)
    together, clocks = _compared(ranks) if problem(ranks) is None else ({}, Clocks({}, {}))
    ordered = sorted(sums.items(), key=lambda item: (-item[1][3], -item[1][4], item[0]))
    return [_document(*name, numbers, together.get(name), clocks) for name, numbers in ordered[:ROWS_MAX]]


def _named(ranks: list[RankCalls]) -> list[RankCalls]:
    """The calls, with those that name no group in the only one of all ranks; a rank lists just the groups that it is in."""
    only = ranks[0].only if ranks else None
    if only is None or any(rank.only != only for rank in ranks):
        return ranks
    label = label_of(only)
    return [
        RankCalls(
            rank.rank,
            rank.file,
            rank.world_size,
            only,
            [
                row._replace(group=label, size=only.size) if row.operation and not row.group else row
                for row in rank.rows
            ],
            {
                name if name[0] else (label, only.name, only.size, only.ranks, *name[4:]): calls
                for name, calls in rank.groups.items()
            },
        )
        for rank in ranks
    ]


def problem(ranks: list[RankCalls]) -> str | None:
    """Why the calls of these files cannot be compared with each other; None where they can, or there is one file."""
    files: dict[int, str] = {}
    for rank in ranks:
        if rank.rank in files:
            return (
                f"{files[rank.rank]} and {rank.file} are both of rank {rank.rank}: the calls of ranks are not compared;"
                " give one file a rank"
            )
        files[rank.rank] = rank.file
    sizes = sorted({rank.world_size for rank in ranks if rank.world_size is not None})
    if len(sizes) > 1:
        return f"files of runs of {' and '.join(map(str, sizes))} ranks: the calls of ranks are not compared"
    return None


def _compared(ranks: list[RankCalls]) -> tuple[dict[tuple[str, str, int], _Compared], Clocks]:
    found: dict[tuple[str, str, int], _Compared] = {}
    matched: dict[tuple, list[dict[int, Call]]] = {}
    for group in {name: None for rank in ranks for name in rank.groups}:
        own = {rank.rank: rank.groups[group] for rank in ranks if group in rank.groups}
        if len(own) > 1 and (not group[2] or len(own) <= group[2]):
            matched[group] = _matched(own)
    clocks = align(
        {
            group: [_ends(call) for call in calls if next(iter(call.values())).operation in TOGETHER]
            for group, calls in matched.items()
        }
    )
    widest = max(clocks.left_ns.values(), default=0)
    for group, calls in matched.items():
        for call in calls:
            first = next(iter(call.values()))
            into = found.setdefault((group[0], first.operation, group[2]), _Compared())
            into.calls.append({rank: (one.start, one.end) for rank, one in call.items()})
            sizes = [one.bytes for one in call.values()]
            into.bytes.append(None if UNKNOWN in sizes else sum(sizes) / len(sizes))
            into.spread_ns = max(into.spread_ns, clocks.left_ns.get(group, widest))
    return found, clocks


def _ends(call: dict[int, Call]) -> dict[int, int]:
    return {rank: one.end for rank, one in call.items()}


def _matched(own: dict[int, list[Call]]) -> list[dict[int, Call]]:
    """The calls that all of these ranks have; all calls of a step, or of the sequence numbers, have to agree."""
    calls: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, listed in own.items():
        for one in listed:
            calls.setdefault((one.step, one.place), {})[rank] = one
    bad = {
        step
        for (step, _), call in calls.items()
        if step and (len(call) < len(own) or len({one.operation for one in call.values()}) > 1)
    }
    return [
        call
        for (step, _), call in calls.items()
        if step not in bad and len(call) == len(own) and len({one.operation for one in call.values()}) == 1
    ]


def _document(
    group: str, operation: str, size: int, numbers: list[int], compared: _Compared | None, clocks: Clocks
) -> dict:
    calls, sized, total, exposed, hidden, ranks = numbers
    listed = compared.calls if compared is not None else []
    skew = skew_of(listed, clocks)
    uncertain = compared.spread_ns if compared is not None and skew.skews else None
    last_rank, last_share = _last(skew, uncertain)
    shortest = [min(end - start for start, end in call.values()) for call in listed]
    waited = sum(
        end - start - least
        for call, least in zip(listed, shortest, strict=True)
        for start, end in call.values()
    )
    is_together = operation in TOGETHER
    rates = (
        _rates(operation, size, compared, shortest) if compared is not None and is_together else (None, None)
    )
    return {
        "group": group,
        "operation": operation,
        "size": size or None,
        "ranks": ranks,
        "calls": calls,
        "bytes": total if sized else None,
        "calls_without_size": calls - sized,
        "exposed_ns": exposed,
        "hidden_ns": hidden,
        "algorithm_bytes_per_second": rates[0],
        "bus_bytes_per_second": rates[1],
        "compared": len(listed),
        "waited_ns": waited if is_together and listed else None,
        "transfer_ns": sum(least * len(call) for call, least in zip(listed, shortest, strict=True))
        if is_together and listed
        else None,
        "skew_ns": skew.median_ns(),
        "skew_uncertainty_ns": uncertain,
        "last_rank": last_rank,
        "last_share": last_share,
    }


def _last(skew: Skew, uncertain: int | None) -> tuple[int, float] | tuple[None, None]:
    """Who was last most often, unless the clocks are not known well enough."""
    middle = skew.median_ns()
    return skew.most_often_last() if middle is not None and middle > (uncertain or 0) else (None, None)


def _rates(
    operation: str, size: int, compared: _Compared, shortest: list[int]
) -> tuple[float, float] | tuple[None, None]:
    """Algorithm and bus bandwidth, bytes a second, from the last rank's arrival to the end."""
    sizes = [
        (operation_bytes(operation, size, round(part)), ns)
        for part, ns in zip(compared.bytes, shortest, strict=True)
        if part is not None
    ]
    moved, spent = sum(size or 0 for size, _ in sizes), sum(ns for _, ns in sizes)
    if size < 2 or not moved or not spent:
        return None, None
    rate = 1e9 * moved / spent
    return rate, rate * bus_factor(operation, size)
