"""Reads one rank's dump of PyTorch's Flight Recorder: a file, or a socket of a process that still answers.

A dump is the pickle that ProcessGroupNCCL writes (TORCH_NCCL_DEBUG_INFO_TEMP_FILE), or JSON. Of a pickle only plain values
are read (plain_pickle.py).
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from goodput.account.collectives.calls import Call
from goodput.trace.hangs import plain_pickle
from goodput.trace.hangs.flight_server import ask
from goodput.trace.operation_names import DTYPES, POINT_TO_POINT, RECEIVED, operation_of
from goodput.trace.stream import TraceError

FILE_BYTES_MAX = 1 << 26
RANKS_MAX, DIMENSIONS_MAX, SIZES_MAX = 1 << 20, 64, 1 << 16
_NUMBER_MAX = 1 << 62


class Entry(NamedTuple):
    """A call as a rank's recorder has it. Times are unix ns of its host, 0 where they are not known."""

    group: str
    description: str
    call: Call
    is_over: bool
    is_begun: bool = False  # on the device, as far as the recorder knows
    is_started: bool = False  # the recorder has seen the begin itself
    is_p2p: bool = False
    output_bytes: int = 0  # of all tensors
    # It ends a coalesced call: it stands for no operation, but has the state of all its parts.
    is_end: bool = False


class Dump(NamedTuple):
    rank: int
    file: str
    entries: list[Entry]
    ranks: dict[str, list[int]]  # of the groups of which the dump has them
    written_ns: int


def read(path: Path, rank: int) -> Dump:
    """The dump of a rank. Raises TraceError with the file and the reason."""
    try:
        raw, written_ns = _raw(path)
        found = json.loads(raw) if raw[:1] == b"{" else plain_pickle.loads(raw)
        entries = _with_ends([_entry(one, at) for at, one in enumerate(_entries(found), 1)])
        ranks = {str(name): _ranks(one, str(name)) for name, one in found.get("pg_config", {}).items()}
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    except TraceError:
        raise
    except Exception as error:
        why = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise TraceError(f"{path}: no dump of a Flight Recorder: {why[:300]}") from None
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


def _entries(found: Any) -> list:
    if not isinstance(found, dict) or not isinstance(found.get("entries"), (list, tuple)):
        raise ValueError("it has no list of `entries`")
    if not isinstance(found.get("pg_config", {}), dict):
        raise ValueError("its `pg_config` is no object")
    lacks = _lacking(found["entries"])
    if lacks:
        version = found.get("version")
        shown = repr(version[:20]) if isinstance(version, str) else "unknown"
        raise ValueError(f"its calls have no `{lacks}`; its version is {shown}")
    return found["entries"]


def _lacking(entries: list) -> str:
    """What the first call lacks that a dump of this format has, "" if nothing."""
    first = entries[0] if entries and isinstance(entries[0], dict) else {}
    needed = "process_group", "profiling_name", "collective_seq_id", "p2p_seq_id", "time_created_ns"
    return next((name for name in needed if name not in first), "") if first else ""


def _ranks(config: Any, group: str) -> list[int]:
    found = config.get("ranks", "[]") if isinstance(config, dict) else None
    found = json.loads(found) if isinstance(found, str) else found
    if not isinstance(found, (list, tuple)) or not all(type(rank) is int for rank in found):
        raise ValueError(f"group {group[:40]!r} of `pg_config` has no list of ranks")
    ranks = sorted(found)
    if (
        len(ranks) > RANKS_MAX
        or len(set(ranks)) < len(ranks)
        or (ranks and not 0 <= ranks[0] <= ranks[-1] < 1 << 32)
    ):
        raise ValueError(f"the {len(ranks)} ranks of group {group[:40]!r} are impossible")
    return ranks


# The type that each field of a call has to have, and its name: a value of another one is no fact about the call, and to print
# or hash it may take for ever. The first ones have to be there.
_NUMBER, _TEXT, _LIST, _TRUTH = (
    ((int,), "a whole number"), ((str,), "a text"), ((list, tuple), "a list"), ((bool, int), "true or false"),
)  # fmt: skip
_REQUIRED = {
    "process_group": _LIST, "profiling_name": _TEXT, "collective_seq_id": _NUMBER, "p2p_seq_id": _NUMBER,
    "time_created_ns": _NUMBER,
}  # fmt: skip
_OPTIONAL = {
    "input_sizes": _LIST, "output_sizes": _LIST, "input_dtypes": _LIST, "output_dtypes": _LIST, "state": _TEXT,
    "time_discovered_started_ns": _NUMBER, "time_discovered_completed_ns": _NUMBER, "is_p2p": _TRUTH, "retired": _TRUTH,
}  # fmt: skip
_LISTS_OF_NAMES = ("process_group", "input_dtypes", "output_dtypes")


def _check_types(one: Any, at: int) -> None:
    """Raises ValueError with the call and the field that is not of its type."""
    if type(one) is not dict:
        raise ValueError(f"call {at} is {_type_name(one)}, want an object")
    for fields, is_required in ((_REQUIRED, True), (_OPTIONAL, False)):
        for name, (types, what) in fields.items():
            value = one.get(name)
            if type(value) not in types and (is_required or value is not None):
                found = _type_name(value) if name in one else "missing"
                raise ValueError(f"`{name}` of call {at} is {found}, want {what}")
    for name in _LISTS_OF_NAMES:
        for part in one.get(name) or ():
            if type(part) not in (str, int):  # A process group without a name has its number.
                raise ValueError(f"`{name}` of call {at} has {_type_name(part)} in it, want names")


def _type_name(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def _entry(one: Any, at: int) -> Entry:
    _check_types(one, at)
    if not one["process_group"]:
        raise ValueError(f"`process_group` of call {at} is empty, want names")
    name, description = (*map(str, one["process_group"]), "")[:2]
    written, _, ends = one["profiling_name"].rpartition(":")[2].partition(" ")
    operation = operation_of(written)
    is_p2p = bool(one.get("is_p2p")) or operation in POINT_TO_POINT
    number = one["p2p_seq_id"] if is_p2p else one["collective_seq_id"]
    side = "output" if operation in RECEIVED else "input"
    sizes, dtypes = one.get(f"{side}_sizes") or [], one.get(f"{side}_dtypes") or []
    dtype, width = DTYPES.get(dtypes[0] if dtypes else "", (str(dtypes[0]).lower() if dtypes else "", 0))
    got, got_dtypes = one.get("output_sizes") or [], one.get("output_dtypes") or []
    output_bytes = _elements(got, at) * DTYPES.get(got_dtypes[0] if got_dtypes else "", ("", 0))[1]
    entered, left = one["time_created_ns"], one.get("time_discovered_completed_ns") or 0
    size = _elements(sizes, at) * width
    if min(number, entered, left) < 0 or max(number, entered, left, size, output_bytes) >= _NUMBER_MAX:
        raise ValueError(f"call {at} has a number or a time out of range")
    is_over = one.get("state") == "completed" or bool(one.get("retired"))
    is_end = written.endswith("coalesced") and not (one.get("input_sizes") or one.get("output_sizes"))
    return Entry(
        name[:200],
        description[:200],
        Call(number, operation, dtype[:40], size, _peer(operation, ends), entered, left),
        is_over,
        is_over or one.get("state") == "started",
        one.get("state") == "started" or bool(one.get("time_discovered_started_ns")),
        is_p2p,
        output_bytes,
        is_end,
    )


def _peer(operation: str, ends: str) -> int:
    """The other rank of a send or receive, by its number in the group: `nccl:send 0->1`, `nccl:recv 1<-0`; -1 if unknown."""
    other = re.fullmatch(r"\d{1,9}(?:->|<-)(\d{1,9})", ends.strip())
    return int(other[1]) if other and operation in POINT_TO_POINT else -1


def _with_ends(entries: list[Entry]) -> list[Entry]:
    """The entries, each part of a coalesced call in the state of the call's end, which is left out itself.

    The parts and the end have one number. A recorder follows only the end, and leaves the parts as they were scheduled."""
    ends: dict[tuple, Entry] = {}
    parts: set[tuple] = set()
    for one in entries:
        if one.is_end:
            ends[_call_id(one)] = one
        else:
            parts.add(_call_id(one))
    found = []
    for one in entries:
        end = ends.get(_call_id(one))
        if end is None:
            found.append(one)
        elif not one.is_end:
            call = one.call._replace(exit_ns=one.call.exit_ns or end.call.exit_ns)
            found.append(
                one._replace(
                    call=call,
                    is_over=one.is_over or end.is_over,
                    is_begun=one.is_begun or end.is_begun,
                    is_started=one.is_started or end.is_started,
                )
            )
        elif not one.is_p2p and _call_id(one) not in parts:
            found.append(one)  # The ring has lost the parts.
    return found


def _call_id(one: Entry) -> tuple:
    return one.group, one.description, one.is_p2p, one.call.sequence


def _elements(sizes: list, at: int) -> int:
    """The elements of all tensors of a call."""
    if len(sizes) > SIZES_MAX:
        raise ValueError(f"call {at} has {len(sizes)} tensors, {SIZES_MAX} at most")
    total = 0
    for shape in sizes:
        count = 1
        if type(shape) not in (list, tuple):
            raise ValueError(f"call {at} has a tensor without a shape")
        if len(shape) > DIMENSIONS_MAX:
            raise ValueError(f"call {at} has a tensor of {len(shape)} dimensions, {DIMENSIONS_MAX} at most")
        for length in shape:
            if type(length) is not int or not 0 <= length < _NUMBER_MAX or count >= _NUMBER_MAX:
                raise ValueError(f"call {at} has a tensor of an impossible shape")
            count *= length
        total += count
    return total
