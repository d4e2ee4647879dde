"""Records of the rank processes on this node, shared by the collectors and the push."""

from __future__ import annotations

from typing import NamedTuple

from goodput.wire import schema


class RankKey(NamedTuple):
    """One process of one rank. A restarted agent or a rerun of the same attempt never shares a key."""

    run: str
    rank: int
    attempt: int
    pid: int
    start_ns: int


def rank_key(identity: schema.Identity) -> RankKey:
    return RankKey(identity.run, identity.rank, identity.attempt, identity.pid, identity.start_ns)


class RankProcess(NamedTuple):
    """A living rank process as its page describes it. `holder` is the pid that locks the page, or 0; `owner` the page's user."""

    run: str
    rank: int
    host: str
    pid: int
    start_ticks: int | None
    holder: int = 0
    device_uuid: str = ""
    owner: int | None = None  # None: any user's process


class RankPhases(NamedTuple):
    """A living rank's cumulative phase times. `totals_ns` belong to `phases`, in order; pid 0 is unknown."""

    key: RankKey
    gpu_uuid: str
    pid: int
    phases: tuple[str, ...]
    compute: frozenset[str]  # those of `phases` in which the rank computes
    totals_ns: tuple[int, ...]
    boundary_ns: int | None = None  # start of the running phase; None where unknown
