"""The account of a run whose rows come in another order than rank by rank; those of a rank in that of its attempts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from goodput.account import Account, Row, Run
from goodput.account.by_core.compute import finishing
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Key, gather
from goodput.defaults import STALL_SECONDS
from goodput.slices import result_of

Queues = dict[int, list[tuple[Key, Row]]]  # by rank, the newest first
Order = Callable[[Queues], Iterator[int]]  # the rank whose next row comes, while there is one


def fed_by(order: Order, run: Run, now_ns: int) -> Account:
    engine = CoreEngine(run, gather(run, now_ns, 0), STALL_SECONDS)
    queues: Queues = {
        rank: [((rank, one.attempt), row) for one in reversed(own) for row in reversed(one.ordered_rows())]
        for rank, own in engine.facts.by_rank.items()
    }
    for rank in order(queues):
        key, row = queues[rank].pop()
        engine.rows(key, [row])
    assert not any(queues.values())
    return result_of(finishing(engine))


def in_time(queues: Queues) -> Iterator[int]:
    while waiting := [rank for rank, own in queues.items() if own]:
        yield min(waiting, key=lambda rank: (queues[rank][-1][1].end_ns, rank))


def by_chance(seed: int) -> Order:
    """A few rows of one rank, then of another."""
    rng = random.Random(seed)

    def order(queues: Queues) -> Iterator[int]:
        while waiting := [rank for rank, own in queues.items() if own]:
            rank = rng.choice(waiting)
            for _ in range(min(rng.choice([1, 2, 7, 30]), len(queues[rank]))):
                yield rank

    return order
