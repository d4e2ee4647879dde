"""One query of NCCL's RAS, as a process of its own: the state of the job to which a process belongs.

    python -m goodput_exporters.nccl_ras.query HOST:PORT PID SECONDS

Queries RAS twice, SECONDS apart. Prints a goodput.wire.ras.RasAnswer as JSON, or with exit status 1 the reason why there
is none.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

import msgspec

from goodput.trace.hangs.ras import ras_answers, ras_document
from goodput.trace.stream import TraceError
from goodput.wire.identity import clean_text
from goodput.wire.ras import (
    COMMUNICATORS_MAX,
    KINDS,
    RANKS_MAX,
    TEXT_MAX,
    RasAnswer,
    RasCommunicator,
    RasRank,
)

BYTES_MAX, MEMORY_BYTES_MAX = 8 << 20, 512 << 20
# Twice within the agent's limit, with the pause between both.
ANSWER_SECONDS = 25.0


def query(address: str, pid: int, between_seconds: float) -> RasAnswer:
    """The answer about the job that has the process `pid`, as NCCL has it. Raises TraceError."""
    answers = ras_answers(address, between_seconds, bytes_max=BYTES_MAX, answer_seconds=ANSWER_SECONDS)
    listed = answers[-1]["communicators"]
    if not any(rank.get("pid") == pid for one in listed for rank in one["ranks"]):
        raise TraceError(f"{address}: none of its communicators has the process {pid}: another job's RAS")
    found = [one for one in ras_document(answers)["communicators"] if one["kind"] in KINDS]
    found.sort(key=lambda one: KINDS.index(one["kind"]))
    return RasAnswer(len(listed), tuple(map(_communicator, found[:COMMUNICATORS_MAX])))


def _communicator(one: dict[str, Any]) -> RasCommunicator:
    named = one[one["kind"]]
    ranks = tuple(_rank(rank, one["kind"]) for rank in named[:RANKS_MAX])
    return RasCommunicator(clean_text(one["hash"], TEXT_MAX), one["size"], one["kind"], len(named), ranks)


def _rank(rank: dict[str, Any], kind: str) -> RasRank:
    if kind == "missing":
        problem = "is dead" if rank["dead"] else "does not respond"
    elif kind == "failed":
        problem = f"reports {rank['error']}"
    else:
        problem = f"has made {rank['calls']} calls of {rank['operation']}, others {rank['others']}"
    return RasRank(
        rank["rank"], clean_text(rank["host"], TEXT_MAX), rank["pid"] or 0, clean_text(problem, TEXT_MAX)
    )


def main(address: str, pid: str, between_seconds: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    try:
        sys.stdout.buffer.write(msgspec.json.encode(query(address, int(pid), float(between_seconds))))
        return 0
    except MemoryError:
        print(f"{address}: an answer that needs over {MEMORY_BYTES_MAX >> 20} MiB of memory")
    except TraceError as error:
        print(error)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
