"""What NCCL's RAS says of a hanging run: which ranks it misses, which have failed, which have made fewer calls.

RAS numbers ranks by communicator and names processes by pid and address. A rank of the run is meant if it has the pid,
and either the number, in a communicator of all ranks, or nobody else in the run has the pid. Others are shown as NCCL
names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from goodput.account.collectives import document_types

if TYPE_CHECKING:
    from goodput.wire.ras import RasAnswer, RasCommunicator  # needs msgspec, which trainers may not have

RANKS_NAMED_MAX = 3


class RasRank(NamedTuple):
    """`rank` is None where it is not known which rank of the run it is; `number` is that in the communicator."""

    rank: int | None
    number: int
    host: str
    pid: int | None
    problem: str


@dataclass(frozen=True)
class RasFinding:
    """The worst communicator, with `count` ranks that have its problem, of `suspicious` of `communicators`.

    `time_ns` is on the clock of the host that queried RAS.
    """

    time_ns: int
    hash: str
    size: int
    kind: str
    count: int
    ranks: tuple[RasRank, ...]
    suspicious: int
    communicators: int

    def named(self) -> int | None:
        """The rank that explains the hang: the first one that is missing or has failed, the only one that is behind."""
        if self.kind == "behind" and self.count > 1:
            return None
        return next((one.rank for one in self.ranks if one.rank is not None), None)

    def reason(self) -> str:
        texts = [f"{_who(one)} {one.problem}" for one in self.ranks[:RANKS_NAMED_MAX]]
        more = self.count - len(texts)
        ending = f"; and {more} more" if more > 0 else ""
        return f"NCCL's RAS, of a communicator of {self.size} ranks: {'; '.join(texts)}{ending}"

    def document(self) -> document_types.RasFinding:
        return {
            "time": self.time_ns / 1e9,
            "hash": self.hash,
            "size": self.size,
            "kind": self.kind,
            "count": self.count,
            "ranks": [document_types.RasRank(**one._asdict()) for one in self.ranks],
            "suspicious": self.suspicious,
            "communicators": self.communicators,
        }


def ras_finding(
    answers: Iterable[tuple[int, RasAnswer]], pids: Mapping[int, int], world_size: int
) -> RasFinding | None:
    """The worst that the newest answer has, None if it finds nothing wrong. `answers` have their time, `pids` are by rank."""
    from goodput.wire.ras import KINDS

    time_ns, newest = max(answers, key=lambda one: one[0], default=(0, None))
    if newest is None or not newest.suspicious:
        return None
    worst = min(newest.suspicious, key=lambda one: (KINDS.index(one.kind), -one.size))
    ranks = tuple(
        RasRank(rank, one.rank, one.host, one.pid or None, one.problem)
        for one, rank in zip(worst.ranks, _ranks(worst, pids, world_size), strict=True)
    )
    return RasFinding(
        time_ns,
        worst.hash,
        worst.size,
        worst.kind,
        worst.count,
        ranks,
        len(newest.suspicious),
        newest.communicators,
    )


def _ranks(worst: RasCommunicator, pids: Mapping[int, int], world_size: int) -> list[int | None]:
    """The ranks of the run that its ranks are, as far as that is known."""
    by_pid: dict[int, list[int]] = {}
    for rank, pid in pids.items():
        by_pid.setdefault(pid, []).append(rank)
    found: list[int | None] = []
    for one in worst.ranks:
        having = by_pid.get(one.pid, [])
        if worst.size == world_size and one.rank in having:
            found.append(one.rank)
        else:
            found.append(having[0] if len(having) == 1 else None)
    return found


def _who(one: RasRank) -> str:
    where = f" on {one.host}" if one.host else ""
    number = f"its rank {one.number}" if one.rank is None else f"rank {one.rank}"
    return f"{number}{where}" + (f" (pid {one.pid})" if one.pid else "")
