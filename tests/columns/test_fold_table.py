"""Folds in a table are those that they were when they were objects, copied and lent as these."""

from __future__ import annotations

import gc

import pytest
from support.account.account_history import Process, ns, run_of

from goodput.account.account import Engine
from goodput.account.facts import gather
from goodput.account.fold import Fold
from goodput.account.peak_throughput import PeakThroughput
from goodput.aggregator.column_attempt import columns_of
from goodput.columns import fold_table, snapshot
from goodput.columns.engine import ColumnEngine
from goodput.columns.fold import fold_columns


def ranks(count: int = 4, steps: int = 40) -> list[Process]:
    made = [Process(rank, world_size=count, group="g") for rank in range(count)]
    for one in made:
        one.between(none=1)
        for _ in range(steps):
            one.step(forward=0.5 + one.rank / 8, communication=0.25, samples=8)
    return made


def engine_of(processes: list[Process]) -> ColumnEngine:
    run = run_of(*processes)
    return ColumnEngine(run, gather(run, max(one.now_ns for one in processes), ns(60)))


def attributes(fold) -> dict:
    """What a state of it would have."""
    found = {name: getattr(fold, name) for name in snapshot.FOLD}
    peak = found.pop("throughput")
    return found | {name: getattr(peak, name) for name in PeakThroughput.__slots__}


def rows_of(engine: ColumnEngine) -> dict:
    return {key: columns_of(one.ordered_rows()) for key, one in engine.run.attempts.items()}


def test_every_kept_attribute_is_of_the_row():
    """Without a property an attribute of a row would be set on an object that nothing keeps."""
    kinds = ("INTEGERS", "FLAGS", "FLOATS", "BY_STATE", "BY_PHASE", "LATER", "OBJECTS", "RARE")
    names = [name for kind in kinds for name in getattr(fold_table, kind)]
    assert [name for name in names if not isinstance(vars(fold_table.RowFold).get(name), property)] == []


@pytest.mark.parametrize("every", [1, 2])
def test_table_has_what_folds_as_objects_have(every):
    """Also where rows are missing, so that each stands for several steps and is folded outside of the table."""
    engine = engine_of(ranks())
    alone = Engine(engine.run, engine.facts)
    fold_columns(engine, {key: rows[:, every - 1 :: every] for key, rows in rows_of(engine).items()})
    for key, attempt in engine.run.attempts.items():
        for row in attempt.ordered_rows()[every - 1 :: every]:
            alone.row(key, row)
    alone.groups.sweep()
    for key, fold in engine.folds.items():
        found, expected = attributes(fold), attributes(alone.folds[key])
        # These are added when steps are settled.
        compared = {"straggler_ns", "matched_ns", "caused_ns", "caused_in_group_ns"}
        compared |= {"compared_steps", "last_steps"}
        assert {k: v for k, v in found.items() if k not in compared} == {
            k: v for k, v in expected.items() if k not in compared
        }


def test_fold_begins_as_the_class_does():
    engine = engine_of(ranks(steps=0))
    for key, fold in engine.folds.items():
        expected = Fold(engine.run.attempts[key], *engine.facts.criteria(key))
        assert attributes(fold) == attributes(expected)
        assert fold.attempt is expected.attempt and fold.planned is engine.planned


def test_copy_and_its_origin_go_on_alone():
    engine = engine_of(ranks())
    rows = rows_of(engine)
    fold_columns(engine, {key: values[:, :20] for key, values in rows.items()})
    before = {key: attributes(fold) for key, fold in engine.folds.items()}
    copied = engine.copy()
    fold_columns(copied, {key: values[:, 20:] for key, values in rows.items()})
    copied.folds.add((9, 1))
    assert {key: attributes(fold) for key, fold in engine.folds.items()} == before
    assert (9, 1) not in engine.folds and copied.folds[0, 1].number == 40 > engine.folds[0, 1].number
    engine.folds.add((8, 1))
    assert (8, 1) not in copied.folds


def test_fold_of_another_table_is_taken_over_whole():
    """With a throughput that is no integer, which a row of several steps makes."""
    engine, other = engine_of(ranks()), engine_of(ranks())
    fold_columns(other, {key: rows[:, 2::3] for key, rows in rows_of(other).items()})
    peak = other.folds[1, 1].throughput
    peak.add(50, 7.5, 3)
    other.folds[1, 1].throughput = peak
    engine.folds[1, 1] = other.folds[1, 1]
    assert attributes(engine.folds[1, 1]) == attributes(other.folds[1, 1])
    assert engine.folds[1, 1].throughput.last_samples % 1


def test_plain_fold_has_every_attribute():
    engine = engine_of(ranks())
    fold_columns(engine, {key: rows[:, 2::3] for key, rows in rows_of(engine).items()})
    before, key = attributes(engine.folds[1, 1]), (1, 1)
    with engine.folds.as_plain_fold(key):
        lent = engine.folds[key]
        plain = Fold(engine.run.attempts[key], *engine.facts.criteria(key))
        assert type(lent) is Fold and vars(lent).keys() == vars(plain).keys()
        assert attributes(lent) == before and lent.planned is engine.planned
        lent.saved_ns += 1
    assert attributes(engine.folds[key]) == before | {"saved_ns": before["saved_ns"] + 1}


def test_account_leaves_no_cycles_for_the_collector():
    """A copy of a table that referred to itself would stay until the collector runs: a MiB for each account."""
    engine = engine_of(ranks())
    fold_columns(engine, rows_of(engine))
    gc.collect()
    gc.disable()
    try:
        account = engine.copy().finish()
        found = gc.collect()
    finally:
        gc.enable()
    assert len(account.ranks) == 4 and found == 0
