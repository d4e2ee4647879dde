"""Asks NCCL's RAS what it knows of a job's communicators: ranks that are missing, failed, or behind the others.

RAS is a thread of NCCL in each process of a job, which answers while everything else hangs; in JSON from NCCL 2.28.7 on
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html). One answer is of one moment, so it is
queried twice: only ranks whose calls do not grow can hang. Ranks are those of the communicator, not of the job.

    document = analyze_ras("localhost:28028")
    document["communicators"][0]["reason"]
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from goodput.account.text import wrap
from goodput.trace.operation_names import operation_of
from goodput.trace.stream import TraceError

ADDRESS = "localhost:28028"
ANSWER_BYTES_MAX = 1 << 26
ANSWER_SECONDS, BETWEEN_SECONDS = 30.0, 5.0
COMMUNICATORS_MAX, RANKS_SHOWN, ROWS_SHOWN = 4096, 8, 20
RANK_MAX = 1 << 30  # no rank, size or pid is as large
_COMMANDS = b"SET FORMAT json\nVERBOSE STATUS\n"
# ncclResult_t: done, and initialization that goes on.
_SUCCESS, _IN_PROGRESS = 0, 7


def analyze_ras(source: str, between_seconds: float = BETWEEN_SECONDS, sleep: Callable = time.sleep) -> dict:
    """The document of a job: `source` is an address, HOST:PORT, or a file with an answer. Raises TraceError.

    {"version": 1, "nccl_version", "communicators": [{"hash", "size", "kind", "reason", "calls": {operation: most of a rank},
     "is_moving": whether any rank has called since the first answer, null for a file, "missing": [{"rank", "host", "pid",
     "dead"}], "failed": [{"rank", "host", "pid", "error"}], "behind": [{"rank", "host", "pid", "operation", "calls",
     "others"}]}]}

    `kind` is "missing", "failed", "behind" or "ok"; those that are not ok come first.
    """
    return ras_document(ras_answers(source, between_seconds, sleep))


def ras_answers(
    source: str,
    between_seconds: float = BETWEEN_SECONDS,
    sleep: Callable = time.sleep,
    bytes_max: int = ANSWER_BYTES_MAX,
    answer_seconds: float = ANSWER_SECONDS,
) -> list[dict]:
    """Two answers, or the one of a file, of at most `bytes_max` and `answer_seconds` each. Raises TraceError."""
    if os.path.isfile(source):
        return [_parsed(_file(source), source, ANSWER_BYTES_MAX)]
    first = _parsed(_ask(source, bytes_max, answer_seconds), source, bytes_max)
    sleep(between_seconds)
    return [first, _parsed(_ask(source, bytes_max, answer_seconds), source, bytes_max)]


def ras_document(answers: list[dict]) -> dict:
    """What `analyze_ras` returns, of one answer or two of the same job."""
    before = {_key(one): one for one in answers[0]["communicators"]}
    last = answers[-1]
    found = [
        _communicator(one, before.get(_key(one)) if len(answers) > 1 else None)
        for one in last["communicators"]
    ]
    return {
        "version": 1,
        "nccl_version": str(last.get("nccl_version", ""))[:40],
        "communicators": sorted(found, key=lambda one: (one["kind"] == "ok", -one["size"], one["hash"])),
    }


def _file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(ANSWER_BYTES_MAX + 1)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


def _ask(address: str, bytes_max: int, seconds: float) -> bytes:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise TraceError(f"{address}: neither a file nor HOST:PORT, such as {ADDRESS}")
    answer, end = b"", time.monotonic() + seconds
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as connection:
            connection.sendall(_COMMANDS)
            # RAS closes the connection after its answer.
            while len(answer) <= bytes_max:
                connection.settimeout(max(end - time.monotonic(), 0.001))
                part = connection.recv(1 << 16)
                if not part:
                    return answer
                answer += part
    except OSError as error:
        raise TraceError(f"{address}: no answer of NCCL's RAS: {error.strerror or error}") from None
    return answer


def _parsed(answer: bytes, source: str, bytes_max: int) -> dict:
    """The JSON after RAS's acknowledgements. Raises TraceError with the source and the reason."""
    if len(answer) > bytes_max:
        raise TraceError(f"{source}: an answer of more than {bytes_max >> 20} MiB")
    begin = answer.find(b"{")
    if begin < 0:
        begins = answer.decode("utf-8", "replace").strip()[:80]
        raise TraceError(
            f"{source}: no JSON, which NCCL's RAS has from 2.28.7 on" + (f": {begins!r}" if begins else "")
        )
    try:
        found = json.loads(answer[begin:])
        listed = found["communicators"]
        if not isinstance(listed, list) or len(listed) > COMMUNICATORS_MAX:
            raise ValueError(f"`communicators` is no list of at most {COMMUNICATORS_MAX}")
        for one in listed:
            ranks = [int(rank["rank"]) for rank in (*one["ranks"], *one.get("missing_ranks", ()))]
            if int(one["size"]) < len(ranks) or not _key(one)[0]:
                raise ValueError(f"a communicator of {one['size']} has {len(ranks)} ranks")
            if (
                not 0 <= min(ranks, default=0) <= max(ranks, default=0) < RANK_MAX
                or int(one["size"]) > RANK_MAX
            ):
                raise ValueError("a rank or the size of a communicator is out of range")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise TraceError(f"{source}: no answer of NCCL's RAS: {what[:200]}") from None
    return found


def _key(one: dict) -> tuple[str, str]:
    return str(one["hash"]), str(one.get("secondary_hash", ""))


def _counts(rank: dict) -> dict[str, int]:
    found = rank.get("collective_counts")
    listed = found.items() if isinstance(found, dict) else ()
    return {operation_of(str(name)): count for name, count in listed if type(count) is int and count >= 0}


def _communicator(one: dict, before: dict | None) -> dict[str, Any]:
    counts = {int(rank["rank"]): _counts(rank) for rank in one["ranks"]}
    calls = {
        name: max(own.get(name, 0) for own in counts.values())
        for name in sorted({name for own in counts.values() for name in own})
    }
    moving = None
    if before is not None:
        moving = any(_counts(rank) != counts.get(int(rank["rank"])) for rank in before["ranks"])
    missing = [
        {**_place(rank), "dead": bool(_status(rank).get("considered_dead"))}
        for rank in one.get("missing_ranks", ())
    ]
    failed = [{**_place(rank), "error": why} for rank in one["ranks"] if (why := _failure(_status(rank)))]
    behind = [] if moving else _behind(one, counts, calls)
    named = ("missing", missing), ("failed", failed), ("behind", behind)
    kind = next((kind for kind, ranks in named if ranks), "ok")
    document = {
        "hash": str(one["hash"])[:40],
        "size": int(one["size"]),
        "kind": kind,
        "reason": "",
        "calls": {name: most for name, most in calls.items() if most},
        "is_moving": moving,
        "missing": missing,
        "failed": failed,
        "behind": behind,
    }
    return {**document, "reason": _reason(document)}


def _status(rank: dict) -> dict[str, Any]:
    """What RAS says of a rank, {} if that is no object."""
    found = rank.get("status")
    return found if isinstance(found, dict) else {}


def _place(rank: dict) -> dict[str, Any]:
    pid = rank.get("pid")
    return {
        "rank": int(rank["rank"]),
        "host": str(rank.get("host", ""))[:64],
        "pid": pid if type(pid) is int and 0 < pid < RANK_MAX else None,
    }


def _failure(status: dict) -> str:
    """The error that a rank reports, "" for none."""
    for field, what in (
        ("async_error", "an asynchronous error"),
        ("init_state", "its initialization failed"),
    ):
        code = status.get(field, _SUCCESS)
        if type(code) is int and code not in (_SUCCESS, _IN_PROGRESS):
            return f"{what} (ncclResult_t {code})"
    return "it was aborted" if status.get("abort_flag") is True else ""


def _behind(one: dict, counts: dict[int, dict[str, int]], calls: dict[str, int]) -> list[dict[str, Any]]:
    """The ranks that have made fewer calls than the one with most; of each the operation in which it lacks most."""
    total = {rank: sum(own.values()) for rank, own in counts.items()}
    found = []
    for rank in one["ranks"]:
        own = counts[int(rank["rank"])]
        if total[int(rank["rank"])] < max(total.values()):
            name = max(calls, key=lambda name: calls[name] - own.get(name, 0))
            found.append(
                {**_place(rank), "operation": name, "calls": own.get(name, 0), "others": calls[name]}
            )
    return sorted(found, key=lambda one: (one["calls"] - one["others"], one["rank"]))


def _reason(found: dict[str, Any]) -> str:
    if found["kind"] == "missing":
        listed = [f"{_who(one)} is {'dead' if one['dead'] else 'unresponsive'}" for one in found["missing"]]
    elif found["kind"] == "failed":
        listed = [f"{_who(one)}: {one['error']}" for one in found["failed"]]
    elif found["kind"] == "behind":
        listed = [
            f"{_who(one)} has made {one['calls']} calls of {one['operation']}, others {one['others']}"
            for one in found["behind"]
        ]
    else:
        moving = {
            True: "ranks make calls",
            False: "all have made the same calls, and none has made another one",
        }
        return moving.get(found["is_moving"], "all have made the same calls")
    more = len(listed) - RANKS_SHOWN
    return "; ".join(listed[:RANKS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _who(one: dict[str, Any]) -> str:
    return f"rank {one['rank']} on {one['host'] or 'an unnamed host'}" + (
        f" (pid {one['pid']})" if one["pid"] else ""
    )


def render(document: dict) -> str:
    """A row and a sentence for each communicator, the suspicious ones first, as text of at most 80 columns."""
    rows = document["communicators"]
    lines = [f"NCCL {document['nccl_version']}, {len(rows)} communicator{'s' * (len(rows) != 1)}"]
    for one in rows[:ROWS_SHOWN]:
        calls = ", ".join(f"{count} {name}" for name, count in one["calls"].items()) or "no calls"
        lines += ["", f"  {one['hash']}: {one['size']} ranks, {calls}", f"    {one['kind']}: {one['reason']}"]
    if len(rows) > ROWS_SHOWN:
        lines.append(f"  … and {len(rows) - ROWS_SHOWN} more")
    return "\n".join(wrap("".join(c if c.isprintable() else "?" for c in line)) for line in lines)
