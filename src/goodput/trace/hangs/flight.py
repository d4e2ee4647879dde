"""Reads dumps of PyTorch's Flight Recorder, one file a rank: what each collective cost, and what is wrong in a hang.

A dump is the pickle that ProcessGroupNCCL writes (TORCH_NCCL_DEBUG_INFO_TEMP_FILE), or JSON; its name ends with the
rank. A Unix socket with such a name returns one (flight_server.py). Pickles are read without calling what they name
(flight_dump.py). The clocks of hosts are never compared as they are: ranks leave a collective together, so a rank's clock is off by
the median of what its ends differ from the others'.

    document = analyze_flight("dumps/")
    document["verdict"]["reason"], document["operations"]
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from goodput.account.collective_verdict import RANKS_SHOWN_MAX, CollectiveVerdict, verdict
from goodput.account.collectives.calls import Call, GroupCalls, RankCalls
from goodput.account.text import bytes_text
from goodput.trace.arrivals import Clocks, align, skew_of
from goodput.trace.hangs.flight_devices import on_devices
from goodput.trace.hangs.flight_dump import Dump, Entry, read
from goodput.trace.hangs.flight_pairs import pair_verdict
from goodput.trace.hangs.flight_parts import one_call_each
from goodput.trace.operation_names import POINT_TO_POINT, TOGETHER
from goodput.trace.stream import TraceError

# Verdicts on different calls under one number, and those that a broken pair of sends and receives may explain.
COMPARED = ("operation", "dtype", "size", "order")
UNEXPLAINED = ("missing", "deadlock", "stopped", "network")
_RANK = re.compile(r"(?<!\d)(\d{1,9})(\.(json|pkl|pickle|sock))?$")


def analyze_flight(directory: str | os.PathLike) -> dict:
    """The document of all dumps in a folder. Raises TraceError where there is none.

    {"version": 1, "ranks": [numbers], "verdict": as `hang.collective` of the API, or null,
     "operations": [{"group", "description", "operation", "ranks", "calls", "bytes", "open", "skew_ns", "last_rank",
                     "last_share"}], "errors": [one message per unusable file]}

    `calls` and `bytes` are those of the rank with most, `open` counts calls of all ranks that have not ended. `skew_ns` is the
    median over calls of how much later the last rank came than the first, null where the dumps have no ends.
    """
    dumps, errors, unread = _dumps(directory)
    if not dumps:
        raise TraceError(f"{directory}: no dump of a Flight Recorder{f' ({errors[0]})' if errors else ''}")
    return dump_document(dumps, errors, unread)


def dump_document(dumps: list[Dump], errors: list[str], unread: frozenset[int] = frozenset()) -> dict:
    """What `analyze_flight` returns, of dumps that have been read; those of the ranks `unread` could not be."""
    found = _verdict(dumps)
    if found is not None and found.kind in UNEXPLAINED and unread.intersection(found.culprits):
        found = _without_culprit(found, unread)
    judged = found and {**found.document(), "reason": _of_dumps(found.reason)}
    return {
        "version": 1,
        "ranks": [dump.rank for dump in dumps],
        "verdict": judged,
        "operations": _operations(dumps),
        "errors": errors,
    }


def _verdict(dumps: list[Dump]) -> CollectiveVerdict | None:
    """What is wrong: a difference between collectives, then one between sends and receives, then who has not come."""
    compared, parts = one_call_each(dumps)
    calls = [_calls_of(dump, compared) for dump in compared]
    found, pair = verdict(calls), pair_verdict(calls)
    if pair is not None and (found is None or (found.kind in UNEXPLAINED and pair.kind != "network")):
        return pair
    if found is None:
        return None
    found = _with_uneven(on_devices(found, compared), compared)
    part = parts.get((found.group.name, found.group.description, found.sequence))
    if part is not None and found.operation not in POINT_TO_POINT and found.kind in COMPARED:
        found = replace(found, reason=f"{found.reason}; this is {part.text()}")
    return found


def _without_culprit(found: CollectiveVerdict, unread: frozenset[int]) -> CollectiveVerdict:
    """The verdict on ranks of which one is named whose dump cannot be read: what it has called is not known."""
    named = sorted(unread.intersection(found.culprits))
    ranks = f"rank{'s' * (len(named) > 1)} {', '.join(map(str, named[:RANKS_SHOWN_MAX]))}"
    reason = (
        f"{found.entered} of {found.group.size} ranks wait in {found.operation} number {found.sequence}; whether {ranks} "
        f"came to it is unknown, since the dump cannot be read"
    )
    return replace(found, culprits=(), reason=reason)


def _with_uneven(found: CollectiveVerdict, dumps: list[Dump]) -> CollectiveVerdict:
    """The verdict on an all-to-all in which all ranks are: whose sizes may differ, but what is sent is received."""
    if found.kind != "network" or found.operation != "all_to_all":
        return found
    group, calls = found.group, []
    for dump in dumps:
        for one in dump.entries:
            name = one.group, one.description, one.call.sequence
            if not one.is_p2p and name == (group.name, group.description, found.sequence):
                calls.append(one)
    sent, received = (
        sum(sizes) for sizes in ([c.call.bytes for c in calls], [c.output_bytes for c in calls])
    )
    if len(calls) < group.size or sent == received or not (sent and received):
        return found
    reason = (
        f"different sizes under number {found.sequence}: all ranks together send {bytes_text(sent)} in this all_to_all and "
        f"receive {bytes_text(received)}"
    )
    return replace(found, kind="size", reason=reason)


def _of_dumps(reason: str) -> str:
    """The reason without what dumps don't have: hosts, and ranks that report."""
    return reason.replace(" on an unnamed host", "").replace(
        "it has never reported", "there is no dump of it"
    )


def _dumps(directory: str | os.PathLike) -> tuple[list[Dump], list[str], frozenset[int]]:
    """The dumps of a folder, one a rank, a message per unusable file, and the ranks of such files. Raises TraceError."""
    try:
        paths = sorted(path for path in Path(directory).iterdir() if path.is_file() or path.is_socket())
    except OSError as error:
        raise TraceError(f"{directory}: {error.strerror or error}") from None
    dumps: dict[int, Dump] = {}
    errors, unread = [], set()
    for path in paths:
        found = _RANK.search(path.name)
        if found is None:
            continue
        rank = int(found[1])
        try:
            if rank in dumps:
                raise TraceError(
                    f"{path}: {Path(dumps[rank].file).name} is of rank {rank}, too: give one dump a rank"
                )
            dumps[rank] = read(path, rank)
        except TraceError as error:
            errors.append(str(error))
            unread.add(rank)
    return [dumps[rank] for rank in sorted(dumps)], errors, frozenset(unread - dumps.keys())


def _calls_of(dump: Dump, dumps: list[Dump]) -> RankCalls:
    groups: dict[tuple[str, str], list[Call]] = {}
    for entry in dump.entries:
        # Where a recorder knows no end, a call that is over has ended when it began.
        left = (entry.call.exit_ns or entry.call.enter_ns) if entry.is_over else 0
        groups.setdefault((entry.group, entry.description), []).append(entry.call._replace(exit_ns=left))
    found = []
    for (name, description), calls in groups.items():
        ranks = _ranks_of(name, description, dumps)
        collectives = [call.sequence for call in calls if call.operation not in POINT_TO_POINT]
        calls.sort(key=lambda call: call.enter_ns)
        found.append(
            GroupCalls(
                name, description, "", len(ranks), _runs(ranks), max(collectives, default=0), tuple(calls)
            )
        )
    return RankCalls(dump.rank, "", "", "", dump.written_ns, 0, tuple(found))


def _runs(ranks: list[int]) -> tuple[tuple[int, int, int], ...]:
    """Ranks in order as stretches without a gap: (first, 1, count)."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][0] + found[-1][2]:
            found[-1][2] += 1
        else:
            found.append([rank, 1, 1])
    return tuple((first, step, count) for first, step, count in found)


def _ranks_of(name: str, description: str, dumps: list[Dump]) -> list[int]:
    """The ranks of a group: as a dump has them, of the default group all, else those that have used it."""
    for dump in dumps:
        if dump.ranks.get(name):
            return dump.ranks[name]
    if description == "default_pg":
        known = (ranks for dump in dumps for ranks in dump.ranks.values())
        return sorted({dump.rank for dump in dumps}.union(*known))
    return [dump.rank for dump in dumps if any(entry.group == name for entry in dump.entries)]


def _operations(dumps: list[Dump]) -> list[dict[str, Any]]:
    by_key: dict[tuple[str, str, str], dict[int, list[Entry]]] = {}
    for dump in dumps:
        for entry in dump.entries:
            key = entry.group, entry.description, entry.call.operation
            by_key.setdefault(key, {}).setdefault(dump.rank, []).append(entry)
    clocks = _clocks(dumps)
    rows = []
    for (group, description, operation), ranks in by_key.items():
        skew = skew_of(_matched(ranks) if operation not in POINT_TO_POINT else (), clocks)
        last_rank, last_share = skew.most_often_last()
        rows.append(
            {
                "group": group,
                "description": description,
                "operation": operation,
                "ranks": len(ranks),
                "calls": max(map(len, ranks.values())),
                "bytes": max(sum(entry.call.bytes for entry in own) for own in ranks.values()),
                "open": sum(not entry.is_over for own in ranks.values() for entry in own),
                "skew_ns": skew.median_ns(),
                "last_rank": last_rank,
                "last_share": last_share,
            }
        )
    return sorted(rows, key=lambda row: (-row["bytes"], row["group"], row["operation"]))


def _clocks(dumps: list[Dump]) -> Clocks:
    """The clocks of the dumps' ranks, by the ends of the calls that ranks leave together."""
    ends: dict[tuple[str, str], dict[int, dict[int, int]]] = {}
    for dump in dumps:
        for entry in dump.entries:
            if entry.call.exit_ns and entry.call.operation in TOGETHER:
                calls = ends.setdefault((entry.group, entry.description), {})
                calls.setdefault(entry.call.sequence, {})[dump.rank] = entry.call.exit_ns
    return align({group: list(calls.values()) for group, calls in ends.items()})


def _matched(ranks: dict[int, list[Entry]]) -> list[dict[int, tuple[int, int]]]:
    """When each rank came to and left the calls that all of them have left."""
    calls: dict[int, dict[int, tuple[int, int]]] = {}
    for rank, own in ranks.items():
        for entry in own:
            if entry.call.exit_ns:
                calls.setdefault(entry.call.sequence, {})[rank] = entry.call.enter_ns, entry.call.exit_ns
    return [call for call in calls.values() if len(call) == len(ranks)]
