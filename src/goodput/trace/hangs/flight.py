"""Reads dumps of PyTorch's Flight Recorder, one file a rank: what each collective cost, and what is wrong in a hang.

A dump is the pickle that ProcessGroupNCCL writes (TORCH_NCCL_DEBUG_INFO_TEMP_FILE), or JSON; its name ends with the
rank. A Unix socket with such a name returns one (flight_server.py). Pickles are read without calling anything that they
name. The clocks of hosts are never compared as they are: ranks leave a collective together, so a rank's clock is off by
the median of what its ends differ from the others'.

    document = analyze_flight("dumps/")
    document["verdict"]["reason"], document["operations"]
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import time
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from goodput.account.collective_verdict import Call, GroupCalls, RankCalls, verdict
from goodput.trace.arrivals import Clocks, align, skew_of
from goodput.trace.hangs.flight_server import ask
from goodput.trace.operation_names import DTYPES, POINT_TO_POINT, RECEIVED, TOGETHER, operation_of
from goodput.trace.stream import TraceError

FILE_BYTES_MAX = 1 << 28
_RANK = re.compile(r"(\d+)(\.(json|pkl|pickle|sock))?$")


class Entry(NamedTuple):
    """A call as a rank's recorder has it. Times are unix ns of its host, 0 where they are not known."""

    group: str
    description: str
    call: Call
    is_over: bool


class Dump(NamedTuple):
    rank: int
    file: str
    entries: list[Entry]
    ranks: dict[str, list[int]]  # of the groups of which the dump has them
    written_ns: int


class _Plain(pickle.Unpickler):
    """Only what needs no class."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no dump has")


def read(path: Path, rank: int) -> Dump:
    """The dump of a rank. Raises TraceError with the file and the reason."""
    try:
        raw, written_ns = _raw(path)
        found = json.loads(raw) if raw[:1] == b"{" else _Plain(io.BytesIO(raw)).load()
        entries = [_entry(one) for one in found["entries"]]
        ranks = {str(name): _ranks(one) for name, one in found.get("pg_config", {}).items()}
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    except TraceError:
        raise
    except Exception as error:
        raise TraceError(f"{path}: no dump of a Flight Recorder: {type(error).__name__}: {error}") from None
    last_ns = max((entry.call.enter_ns for entry in entries), default=0)
    return Dump(rank, str(path), entries, ranks, max(written_ns, last_ns))


def _raw(path: Path) -> tuple[bytes, int]:
    """A dump, and when it was written. Raises OSError and TraceError."""
    if path.is_socket():
        return ask(path, FILE_BYTES_MAX), time.time_ns()
    about = path.stat()
    if about.st_size > FILE_BYTES_MAX:
        raise TraceError(f"{path}: {about.st_size} bytes, {FILE_BYTES_MAX} at most")
    return path.read_bytes(), about.st_mtime_ns


def _ranks(config: dict) -> list[int]:
    found = config.get("ranks", "[]")
    return sorted(map(int, json.loads(found) if isinstance(found, str) else found))


def _entry(one: dict) -> Entry:
    name, description = (*map(str, one["process_group"]), "")[:2]
    operation = operation_of(str(one["profiling_name"]).rpartition(":")[2].split(" ")[0])
    number = one["p2p_seq_id"] if operation in POINT_TO_POINT else one["collective_seq_id"]
    side = "output" if operation in RECEIVED else "input"
    sizes, dtypes = one.get(f"{side}_sizes") or [], one.get(f"{side}_dtypes") or []
    dtype, width = DTYPES.get(dtypes[0] if dtypes else "", (str(dtypes[0]).lower() if dtypes else "", 0))
    size = sum(map(prod, sizes)) * width
    entered, left = int(one["time_created_ns"]), int(one.get("time_discovered_completed_ns") or 0)
    is_over = one.get("state") == "completed" or bool(one.get("retired"))
    return Entry(name, description, Call(int(number), operation, dtype, size, -1, entered, left), is_over)


def analyze_flight(directory: str | os.PathLike) -> dict:
    """The document of all dumps in a folder. Raises TraceError where there is none.

    {"version": 1, "ranks": [numbers], "verdict": as `hang.collective` of the API, or null,
     "operations": [{"group", "description", "operation", "ranks", "calls", "bytes", "open", "skew_ns", "last_rank",
                     "last_share"}], "errors": [one message per unusable file]}

    `calls` and `bytes` are those of the rank with most, `open` counts calls of all ranks that have not ended. `skew_ns` is the
    median over calls of how much later the last rank came than the first, null where the dumps have no ends.
    """
    dumps, errors = [], []
    try:
        paths = sorted(path for path in Path(directory).iterdir() if path.is_file() or path.is_socket())
    except OSError as error:
        raise TraceError(f"{directory}: {error.strerror or error}") from None
    for path in paths:
        found = _RANK.search(path.name)
        if found is not None:
            try:
                dumps.append(read(path, int(found[1])))
            except TraceError as error:
                errors.append(str(error))
    if not dumps:
        raise TraceError(f"{directory}: no dump of a Flight Recorder{f' ({errors[0]})' if errors else ''}")
    found = verdict(_calls_of(dump, dumps) for dump in dumps)
    # A dump does not name its host.
    judged = found and {**found.document(), "reason": found.reason.replace(" on an unnamed host", "")}
    return {
        "version": 1,
        "ranks": [dump.rank for dump in dumps],
        "verdict": judged,
        "operations": _operations(dumps),
        "errors": errors,
    }


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
    return RankCalls(dump.rank, "", "no call that is open", "", dump.written_ns, 0, tuple(found))


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
