"""Facts gathered for all attempts at once are those that are gathered one by one."""

from __future__ import annotations

import random

import pytest

from goodput.account.attempts import ABANDONED, Attempt, EndMark, Run
from goodput.account.derived import Derived
from goodput.account.facts import Facts, gather
from goodput.columns.engine import ColumnEngine
from goodput.columns.facts import gathering
from goodput.columns.run_columns import RunColumns
from goodput.slices import result_of

S = 10**9


def random_attempt(rng: random.Random, rank: int, number: int, start_ns: int) -> Attempt:
    one = Attempt(rank, number, start_ns, worker="w" * (rng.random() < 0.01))
    one.world_size = rng.choice([1, 2, 4, 4, 4, 8])
    one.submit_time = rng.choice([None, None, (start_ns - rng.randrange(100) * S) / S])
    one.last_ns, one.seen_ns = (start_ns + rng.randrange(200) * S for _ in range(2))
    one.received_ns = rng.choice([0, one.seen_ns, one.seen_ns + 40 * S])
    one.phase = rng.choice(["forward", "none", ""])
    if rng.random() < 0.8:
        one.first_step = rng.randrange(20)
        one.rows_end_ns = start_ns + rng.randrange(250) * S
    if rng.random() < 0.3:
        one.alive, one.ended = rng.choice(
            [(False, ""), (False, "finished"), (True, "failed"), (True, "resumed")]
        )
        one.end_ns = rng.choice([0, start_ns + rng.randrange(200) * S])
    if rng.random() < 0.03:
        one.end_mark = EndMark(rng.choice(["failed", ABANDONED]), rng.choice([0, one.last_ns]), 1 << 60)
    if rng.random() < 0.2:
        one.begun, one.committed = True, rng.choice([None, rng.randrange(20)])
    if rng.random() < 0.1:
        one.declared_resume_step = rng.randrange(20)
    return one


def random_run(rng: random.Random) -> Run:
    run = Run("r", start_ns=rng.choice([None, None, 990 * S]), end_ns=rng.choice([None] * 9 + [1300 * S]))
    for number in range(1, rng.randrange(2, 5)):
        begin = (900 + 100 * number) * S
        for rank in range(rng.choice([1, 3, 4, 5])):
            if rng.random() < 0.9:
                start_ns = begin + rng.randrange(-30, 60) * S
                run.attempts[rank, number] = random_attempt(rng, rank, number, start_ns)
    return run


def plain(facts: Facts) -> dict:
    """All fields, with mappings as dictionaries and ranges as lists."""
    found = {name: getattr(facts, name) for name in Facts.__dataclass_fields__}
    found |= {name: dict(found[name]) for name in ("limits", "bounds", "after")}
    return found | {"expected": found["expected"].ranges}


@pytest.mark.parametrize("stale_seconds", [None, 30.0, 1000.0])
def test_facts_are_those_gathered_one_by_one(stale_seconds):
    """Also where a rank restarted, is silent, leaves the world or is back in it, and where clocks contradict."""
    rng, at_once = random.Random(15), 0
    for _ in range(1500):
        run = random_run(rng)
        now_ns = rng.randrange(900, 1700) * S
        expected = gather(run, now_ns, 60 * S, stale_seconds, known_only=True)
        found = result_of(gathering(RunColumns(run), now_ns, 60 * S, stale_seconds))
        assert plain(found) == plain(expected)
        at_once += isinstance(found.bounds, Derived)
    assert at_once > 200


def test_engine_of_facts_in_columns_has_the_same_criteria():
    rng = random.Random(7)
    for _ in range(100):
        run = random_run(rng)
        facts = gather(run, 1400 * S, 60 * S, 30.0, known_only=True)
        engine = ColumnEngine(run, facts)
        for key, fold in engine.folds.items():
            assert (fold.bound, fold.limit, fold.threshold_ns, fold.restarts) == facts.criteria(key)
