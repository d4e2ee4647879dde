"""What NCCL's RAS answered about a hanging job, as it travels in a rank's report."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Struct

COMMUNICATORS_MAX, RANKS_MAX = 8, 16
TEXT_MAX = 160
# In order of weight; what each means is in trace/hangs/ras.py.
KINDS = ("missing", "failed", "behind")
_NUMBER_MAX = 1 << 31
_FEW = msgspec.Meta(max_length=64)


class RasRank(Struct, array_like=True, frozen=True, gc=False):
    """A rank that RAS names: its rank in the communicator, its host and pid (0: unknown) as NCCL has them, and why."""

    rank: int
    host: str
    pid: int
    problem: str


class RasCommunicator(Struct, array_like=True, frozen=True, gc=False):
    """A communicator with something wrong; `count` ranks have it, the first of which are in `ranks`."""

    hash: str
    size: int
    kind: str
    count: int
    ranks: Annotated[tuple[RasRank, ...], _FEW]


class RasAnswer(Struct, array_like=True, frozen=True, gc=False):
    """Of `communicators` in all those with something wrong, the worst first."""

    communicators: int
    suspicious: Annotated[tuple[RasCommunicator, ...], _FEW] = ()


def ras_problem(answer: RasAnswer) -> str:
    """What is wrong with it, "" if nothing is."""
    found = answer.suspicious
    if len(found) > COMMUNICATORS_MAX or any(len(one.ranks) > RANKS_MAX for one in found):
        return f"over {COMMUNICATORS_MAX} communicators of NCCL's RAS, or {RANKS_MAX} ranks of one"
    if any(one.kind not in KINDS for one in found):
        return "a communicator of NCCL's RAS is of an unknown kind"
    ranks = [rank for one in found for rank in one.ranks]
    numbers = [answer.communicators, *(number for one in found for number in (one.size, one.count))]
    numbers += [number for rank in ranks for number in (rank.rank, rank.pid)]
    if min(numbers) < 0 or max(numbers) >= _NUMBER_MAX:
        return "a number of NCCL's RAS is out of range"
    texts = [*(one.hash for one in found), *(text for rank in ranks for text in (rank.host, rank.problem))]
    if any(len(text) > TEXT_MAX or not text.isprintable() for text in texts):
        return "a text of NCCL's RAS is too long or not printable"
    return ""
