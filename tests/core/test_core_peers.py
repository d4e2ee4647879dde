"""The core against a comparison of ranks by brute force: groups, pipelines, and ranks that are slow for a time."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from support.core.peer_oracle import Peer, Shape, compare

from goodput._core import CoreRun

SEEDS = [*range(80), *(pytest.param(seed, marks=pytest.mark.more_seeds) for seed in range(80, 800))]
STATES = ("productive", "loader", "communication", "checkpoint")
MILLISECOND = 10**6
NAMES = (
    *("straggler_ns", "bubble_ns", "caused_ns", "caused_in_group_ns", "compared_steps", "last_steps"),
    "matched_ns",
)


def random_peers(random: Random, shape: Shape) -> list[Peer]:
    """No step is a stall, and no first step is longer than the others'."""
    ranks = shape.stages * random.choice([1, 2, 4]) if shape.stages else random.choice([2, 3, 8, 17])
    units, steps, found = random.choice([1, 2]), random.choice([20, 300]), []
    some = random.sample(range(ranks), random.randint(1, max(1, ranks // 3)))
    slow = {rank: random.choice([1.0, 1.06, 1.12, 1.2, 1.5, 3.0]) for rank in some}
    begins, noise = random.randrange(200), random.choice([20, 110])
    until = begins + random.choice([10, 15, 20, 30, 60, 1000])
    for rank in range(ranks):
        own = [(900 * MILLISECOND, random.choice([500, 500, random.randrange(900)]) * MILLISECOND)]
        for step in range(1, steps):
            factor = slow.get(rank, 1.0) if begins <= step < until else 1.0
            compute = int(factor * random.choice([1000, 1000 + random.randrange(noise)]) * MILLISECOND)
            loader = random.choice([100, 100, 100 + 3 * noise]) * MILLISECOND
            waits = random.choice([300 * MILLISECOND, 300 * MILLISECOND, random.randrange(10**9), 0])
            own.append((compute + loader, waits))
        stage = rank * shape.stages // ranks
        found.append(Peer(rank, stage, rank % units if shape.stages else 0, own))
    return found


def rows_of(random: Random, peer: Peer) -> array:
    values, end = array("q"), 0
    totals, outside = [0] * len(STATES), [0] * len(STATES)
    for step, (own, waits) in enumerate(peer.steps):
        loader = 0 if step == 0 else own // 10
        checkpoint = random.choice([0, 0, 500 * MILLISECOND])
        parts = (own - loader, loader, waits, checkpoint)
        totals = [total + ns for total, ns in zip(totals, parts, strict=True)]
        outside[3] += checkpoint
        end += sum(parts)
        values.extend((step + 1, step, end, 0, 0, *totals, *outside))
    return values


@pytest.mark.parametrize("seed", SEEDS)
def test_same_as_by_brute_force(seed):
    random = Random(seed)
    shape = Shape(stages := random.choice([0, 0, 2, 4]), random.choice([0, 1, 4, 16]) if stages else 0)
    peers = random_peers(random, shape)
    run = CoreRun()
    group = run.group(shape.stages, shape.microbatches)
    for peer in peers:
        run.attempt(peer.rank, 0, group, STATES, stage=peer.stage, unit=peer.unit)
    for peer in peers:
        run.fold(peer.rank, rows_of(random, peer))
    for peer in peers:
        run.end(peer.rank)
    by_stage = compare(peers, shape)
    for peer in peers:
        values = run.read(peer.rank)
        peer.sums["matched_ns"] = sum(own + waits for own, waits in peer.steps)
        assert {name: values[name] for name in NAMES} == {name: peer.sums[name] for name in NAMES}
        both = values["communication"] + values["straggler_ns"] + values["bubble_ns"]
        assert both == sum(waits for _, waits in peer.steps)
        assert run.stretches(peer.rank) == peer.onset.stretches
    assert [run.read_stage(group, stage) for stage in range(stages)] == [
        tuple(by_stage[stage]) for stage in range(stages)
    ]
