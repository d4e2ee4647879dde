"""Ranks that wait, or waited, for the other ranks of their process group to start, and which ranks these are."""

from __future__ import annotations

from typing import NamedTuple

from goodput.account.attempts import Attempt, Run
from goodput.account.text.formats import duration_ns
from goodput.defaults import PEERS

NAMED_MAX = 8


class Peers(NamedTuple):
    """Of the newest attempt; `waited_ns` is the longest wait, of `rank`, up to the last report where it still waits."""

    rank: int
    waited_ns: int
    is_waiting: bool
    missing: tuple[int, ...]  # ranks of the world that have not reported; of those that wait no more, none
    last: int | None  # the rank that waited least, if all were seen to wait and the wait is over


def peers_of(run: Run) -> Peers | None:
    """None where no rank waited."""
    newest = run.newest()
    ranks = {rank: attempt for (rank, number), attempt in run.attempts.items() if number == newest}
    waits = {rank: ns for rank, attempt in ranks.items() if (ns := waited_ns(attempt))}
    if not waits:
        return None
    longest = max(waits, key=waits.__getitem__)
    waiting = [rank for rank, one in ranks.items() if one.phase == PEERS and one.alive and not one.ended]
    world = max(attempt.world_size for attempt in ranks.values())
    missing = (rank for rank in range(world) if rank not in ranks) if waiting else ()
    is_known = not waiting and len(waits) == world > 1
    last = min(waits, key=waits.__getitem__) if is_known else None
    return Peers(longest, waits[longest], bool(waiting), tuple(missing), last)


def waited_ns(attempt: Attempt) -> int:
    """How long an attempt has waited for its peers, up to its last report."""
    if PEERS not in attempt.phases:
        return 0
    column = attempt.phases.index(PEERS)
    waited = attempt.totals[column] if column < len(attempt.totals) else 0
    if attempt.phase == PEERS and attempt.alive and not attempt.ended:
        waited += max(attempt.seen_ns - attempt.last_ns, 0)
    return waited


def ranks_text(ranks: tuple[int, ...]) -> str:
    """ "rank 3", "ranks 1, 2" or "ranks 1, 2, … (64 in all)"."""
    shown = ", ".join(map(str, ranks[:NAMED_MAX]))
    more = f", … ({len(ranks)} in all)" if len(ranks) > NAMED_MAX else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


def peers_text(peers: Peers) -> str:
    """What is known of the wait, as one sentence."""
    verb = "has waited" if peers.is_waiting else "waited"
    text = f"rank {peers.rank} {verb} {duration_ns(peers.waited_ns)} in init_process_group for its peers to start"
    if peers.missing:
        have = "has" if len(peers.missing) == 1 else "have"
        return f"{text}; {ranks_text(peers.missing)} {have} not reported"
    return f"{text}; rank {peers.last} came last" if peers.last is not None else text
