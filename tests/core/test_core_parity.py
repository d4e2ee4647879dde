"""The core and the account's other engine agree where their rules are the same: short steps, an ordinary first one.

These histories have pipelines, groups within them and ranks that are slow for a time.
"""

from __future__ import annotations

from array import array
from random import Random

import pytest
from goodput.account.rank_groups import Groups
from support.account.account_history import PHASES, Process, run_of

from goodput._core import ROW_STATES, CoreRun
from goodput.account.account import Engine
from goodput.account.facts import gather
from goodput.account.states import INDEX, PHASE_STATES

SEEDS = [*range(60), *(pytest.param(seed, marks=pytest.mark.more_seeds) for seed in range(60, 600))]
NAMES = {
    "straggler_ns",
    "bubble_ns",
    "caused_ns",
    "caused_in_group_ns",
    "matched_ns",
    "compared_steps",
    "last_steps",
    "compute_ns",
}


def processes(random: Random, stages: int, microbatches: int | None) -> list[Process]:
    ranks = stages * random.choice([1, 2, 4]) if stages else random.choice([2, 3, 8, 17])
    units, found = random.choice([1, 2]), []
    slow = random.randrange(ranks), random.randrange(200), random.choice([1.0, 1.5, 3.0])
    for rank in range(ranks):
        place = {"stage": rank * stages // ranks, "microbatches": microbatches} if stages else {}
        found.append(
            Process(rank, group=f"g{rank % units}", **place)
            .between(restore=1)
            .step(forward=1, communication=0.5)
        )
    for step in range(random.choice([20, 300])):
        for rank, one in enumerate(found):
            factor = slow[2] if rank == slow[0] and step >= slow[1] else 1.0
            one.between(checkpoint=random.choice([0, 0, 0.5]))
            waits = random.choice([0.3, 0.3, random.random()])
            one.step(
                forward=factor * (1 + random.random() / 9),
                loader=random.choice([0.1, 0.1, 0.4]),
                communication=waits,
            )
    return found


def core_of(found: list[Process], stages: int, microbatches: int | None) -> CoreRun:
    run = CoreRun()
    names = sorted({one.identity["group"] for one in found})
    groups = [run.group(stages, microbatches or 0)] if stages else [run.group() for _ in names]
    for one in found:
        unit = names.index(one.identity["group"])
        group, states = groups[0 if stages else unit], [PHASE_STATES[phase] for phase in PHASES]
        run.attempt(one.rank, one.start_ns, group, states, stage=one.identity.get("stage") or 0, unit=unit)
    for one in found:
        rows = [[r.number, r.step, r.end_ns, r.samples, r.device_ns, *r.totals, *r.outside] for r in one.rows]
        run.fold(one.rank, array("q", [value for row in rows for value in row]))
    for one in found:
        run.end(one.rank)
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_account(seed):
    random = Random(seed)
    stages = random.choice([0, 0, 2, 4])
    microbatches = random.choice([None, 1, 4, 16]) if stages else None
    found = [one.finished() for one in processes(random, stages, microbatches)]
    whole = run_of(*found)
    engine = Engine(whole, gather(whole, max(one.now_ns for one in found), 60 * 10**9), Groups)
    for one in found:
        for row in one.rows:
            engine.row((one.rank, 1), row)
    engine.finish()
    core = core_of(found, stages, microbatches)
    for one in found:
        fold, values = engine.folds[one.rank, 1], core.read(one.rank)
        assert {name: values[name] for name in NAMES} == {name: getattr(fold, name) for name in NAMES}
        for state in ROW_STATES:
            both = values[state] + values[f"outside_{state}"]
            assert both == sum(sums[INDEX[state]] for sums in (fold.kept, fold.rest)), state
        own = engine.groups.onsets.get((one.rank, 1))
        assert core.stretches(one.rank) == [tuple(stretch) for stretch in (own.stretches if own else [])]
        steps, ns = core.phase_times(one.rank)
        times = fold.phase_times()
        assert (steps, tuple(ns)) == (times.steps, tuple(times.totals))
    for stage in range(stages):
        caused = engine.groups.stage_caused_ns.get(stage, 0), engine.groups.stage_last_steps.get(stage, 0)
        assert core.read_stage(0, stage) == caused
