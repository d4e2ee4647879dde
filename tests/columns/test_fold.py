"""Columns are folded to the same account as rows one by one, to the nanosecond, however they are split."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.account.account_history import Process, ns, run_of
from support.account.near import differing, near
from support.account.random_histories import runs
from support.aggregator.random_runs import random_processes
from support.seeds import cases

from goodput.account import Run
from goodput.account.account import Account, Engine
from goodput.account.attempts import padded
from goodput.account.collectives.operation_sums import Exposed
from goodput.account.facts import gather
from goodput.account.ranks import RankAccount, RankColumns, sum_gpu_ns
from goodput.account.stall_threshold import StepLengths
from goodput.columns import rank_columns, snapshot
from goodput.columns.engine import ColumnEngine
from goodput.columns.fold import fold_columns
from goodput.wire.step_blocks import encode_rows
from goodput.wire.step_columns import decode

RANK_PROPERTIES = [name for name, value in vars(RankAccount).items() if isinstance(value, property)]


def values_of(attempt) -> np.ndarray:
    """An attempt's rows as columns."""
    width = len(attempt.phases)
    rows = [
        row._replace(totals=padded(row.totals, width), outside=padded(row.outside, width))
        for row in attempt.ordered_rows()
    ]
    return decode([encode_rows(rows, width)] if rows else [], width).values


def by_rows(run: Run, facts) -> Account:
    engine = Engine(run, facts)
    for own in facts.by_rank.values():
        for attempt in own:
            for row in attempt.ordered_rows():
                engine.row((attempt.rank, attempt.attempt), row)
    return engine.finish()


def stored(engine: Engine) -> Engine:
    """The engine as it is read back, the same one where a number does not fit into 64 bits."""
    try:
        body = snapshot.encode(engine, StepLengths())
    except snapshot.SnapshotError:
        return engine
    again = snapshot.decode(body).engine(engine.run)
    again.facts = engine.facts
    return again


def by_columns(run: Run, facts, rng: random.Random) -> Account:
    """Fed in parts of any length; the engine is copied, compares ranks, and is stored and read back, at any moment."""
    engine = ColumnEngine(run, facts)
    keys = [(a.rank, a.attempt) for own in facts.by_rank.values() for a in own]
    left = {key: values_of(run.attempts[key]) for key in keys}
    while any(values.shape[1] for values in left.values()):
        parts = {}
        for key, values in left.items():
            # An attempt's rows come after those of the rank's attempts before.
            if not any(left[other].shape[1] for other in keys[: keys.index(key)] if other[0] == key[0]):
                many = rng.choice([0, 1, 3, values.shape[1]])
                parts[key], left[key] = values[:, :many], values[:, many:]
        fold_columns(engine, parts)
        if rng.random() < 0.3:
            engine.copy().finish()
        if rng.random() < 0.3:
            engine.groups.sweep()
        if rng.random() < 0.3:
            engine = stored(engine)
    return engine.finish()


def assert_same(run: Run, facts, rng: random.Random) -> None:
    expected, found = by_rows(run, facts), by_columns(run, facts, rng)
    wrong = differing(found, expected)
    assert wrong == [], {name: (getattr(found, name), getattr(expected, name)) for name in wrong}
    assert_ranks_same(found.ranks, list(expected.ranks), rng)


def assert_ranks_same(columns: Sequence[RankAccount], ranks: list[RankAccount], rng: random.Random) -> None:
    """Everything that is asked of all ranks at once is what each rank has."""
    assert isinstance(columns, RankColumns)
    for name in (*RankAccount.__match_args__, *RANK_PROPERTIES):
        assert near(columns.values(name), [getattr(rank, name) for rank in ranks]), name
    assert columns.gpu_ns() == sum_gpu_ns(ranks)
    some = [at for at in range(len(ranks)) if rng.random() < 0.5]
    assert near(columns.chosen(some), [ranks[at] for at in some])
    assert all(near(columns[at], rank) for at, rank in enumerate(ranks))


def test_one_rank_is_read_without_the_others(monkeypatch):
    """Else what looks at ranks one by one takes the square of their number."""
    made = []
    monkeypatch.setattr(rank_columns, "Exposed", lambda *of: made.append(of) or Exposed(*of))
    run = run_of(*(Process(rank).steps(3, forward=1, communication=0.5) for rank in range(50)))
    ranks = by_columns(run, gather(run, 10**10, 60 * 10**9), random.Random(1)).ranks
    assert isinstance(ranks, RankColumns)
    assert [ranks[7].rank, *(one.rank for one in ranks.chosen([3, 9]))] == [7, 3, 9] and len(made) == 3
    assert list(ranks.chosen([])) == [] and len(made) == 3
    assert len(list(ranks)) == 50 and len(made) == 53


@settings(max_examples=70)
@given(
    runs(),
    st.integers(0, 1 << 62),
    st.sampled_from([1, 10**9, 60 * 10**9]),
    st.randoms(use_true_random=False),
)
def test_columns_equal_rows_for_hostile_histories(run, now_ns, threshold_ns, rng):
    assert_same(run, gather(run, now_ns, threshold_ns), rng)


@pytest.mark.parametrize("seed", cases(60))
def test_columns_equal_rows_for_random_runs(seed):
    rng = random.Random(seed)
    processes = random_processes(rng)
    run = run_of(*processes)
    last_ns = max(one.now_ns for one in processes)
    threshold_ns = rng.choice([ns(0.3), ns(1.5), ns(60)])
    assert_same(run, gather(run, last_ns, threshold_ns), rng)
    first_ns = min(one.start_ns for one in processes)
    low, high = sorted(rng.randrange(first_ns, last_ns) for _ in range(2))
    assert_same(run, gather(run, last_ns, threshold_ns, window=(low, high)), rng)


@pytest.mark.parametrize("seed", cases(40))
def test_columns_equal_rows_of_several_steps(seed):
    """Rows that are left of a thinned run: of all ranks the same steps, of which some are single and some lack."""
    rng = random.Random(seed)
    ranks, steps = rng.choice([1, 2, 3, 6]), rng.randrange(20, 400)
    processes = long_run(rng, ranks, steps)
    run, every = run_of(*processes), rng.choice([2, 5, 30])
    single = rng.randrange(steps)
    for attempt in run.attempts.values():
        attempt.rows = {
            number: row
            for number, row in attempt.rows.items()
            if number == 1 or row.step % every == 0 or single <= row.step < single + 9 or rng.random() < 0.02
        }
    last_ns = max(one.now_ns for one in processes)
    threshold_ns = rng.choice([ns(0.3), ns(60)])
    assert_same(run, gather(run, last_ns, threshold_ns), rng)
    low, high = sorted(rng.randrange(ns(1000), last_ns) for _ in range(2))
    assert_same(run, gather(run, last_ns, threshold_ns, window=(low, high)), rng)


def long_run(rng: random.Random, ranks: int, steps: int, stages: int = 1) -> list[Process]:
    """Ranks in lock step, of which some become slow and recover, with an evaluation, a checkpoint and a stall."""
    slow = {rng.randrange(ranks): (rng.randrange(steps), rng.randrange(1, 60)) for _ in range(2)}
    processes = []
    for rank in range(ranks):
        stage = {"stage": rank * stages // ranks, "microbatches": 4} if stages > 1 else {}
        processes.append(Process(rank, 1, 1000.0, **stage).between(none=2 + rank / 100))
    for step in range(steps):
        own = [0.1 + rng.random() / 50 for _ in processes]
        for rank, (first, many) in slow.items():
            own[rank] *= 1.5 if first <= step < first + many else 1
        longest = max(own)
        for one, seconds in zip(processes, own, strict=True):
            one.step(loader=0.01, forward=seconds, communication=longest - seconds + 0.02, samples=32)
            if step % 50 == 20:
                one.between(evaluation=1.5, none=0.1)
            if step == steps // 2:
                one.between(checkpoint=3.0).saved()
    processes[0].between(none=90.0)
    return [one.killed() if rng.random() < 0.3 else one.silent(after=1) for one in processes]


@pytest.mark.parametrize(
    ("ranks", "stages", "group"), [(2, 1, 2), (16, 1, 16), (12, 1, 3), (8, 2, 8), (8, 4, 2), (33, 1, 33)]
)
def test_columns_equal_rows_for_slow_ranks(ranks, stages, group):
    """Enough steps that stretches of slow steps begin and end, and steps are compared before all have come."""
    rng = random.Random(ranks * stages)
    processes = long_run(rng, ranks, 260, stages)
    for one in processes:
        one.identity["group"] = f"g{one.rank // group}"
    run = run_of(*processes)
    facts = gather(run, max(one.now_ns for one in processes), ns(60))
    assert_same(run, facts, rng)
    found = by_columns(run, facts, rng)
    if ranks // stages > 4:
        assert any(onset.stretches for onset in found.straggler.onsets.values())


def test_only_irregular_steps_are_folded_one_by_one():
    """The first step of an attempt and the one that crosses the end of its bound, not the many beyond it."""
    processes = [Process(rank, 1, 1000.0) for rank in range(3)]
    for one in processes:
        for _ in range(40):
            one.step(forward=0.9, communication=0.1)
    run = run_of(*processes)
    facts = gather(run, processes[0].now_ns, ns(60), window=(None, ns(1020.5)))
    engine, folded = ColumnEngine(run, facts), []
    row = engine.row
    engine.row = lambda key, one: (folded.append((key[0], one.number)), row(key, one))  # type: ignore[method-assign]
    fold_columns(engine, {key: values_of(attempt) for key, attempt in run.attempts.items()})
    assert folded == [(rank, number) for rank in range(3) for number in (1, 21)]
    assert differing(engine.finish(), by_rows(run, facts)) == []


@pytest.mark.parametrize("before", [0.0, 0.3])
def test_steps_across_the_bound_are_folded_together(before):
    """Of a rank that has reported more than others; the step is compared by its part within the bound."""
    processes = [Process(rank, 1, 1000.0) for rank in range(3)]
    for number in range(40):
        for rank, one in enumerate(processes):
            one.between(loader=before).step(forward=0.6 + rank / 50, communication=0.2 - rank / 50, samples=3)
            if number % 7 == rank:
                one.between(checkpoint=0.5)
    run = run_of(*processes)
    for tenths in range(5, 30):
        facts = gather(run, processes[0].now_ns, ns(60), window=(None, ns(1005 + tenths / 10)))
        engine, folded = ColumnEngine(run, facts), []
        row, values = engine.row, {key: values_of(attempt) for key, attempt in run.attempts.items()}
        engine.row = lambda key, one: (folded.append(one.number), row(key, one))  # type: ignore[method-assign]  # noqa: B023
        fold_columns(engine, {key: own[:, :3] for key, own in values.items()})
        fold_columns(engine, {key: own[:, 3:] for key, own in values.items()})
        assert folded == [1, 1, 1] and differing(engine.finish(), by_rows(run, facts)) == [], tenths


def test_totals_that_leave_int64_together_are_exact():
    """What a rank reports since its last step may be anything, also in phases of the same state."""
    run = run_of(*(Process(rank).steps(3, forward=1, backward=1, communication=0.5) for rank in range(2)))
    attempt = run.attempts[0, 1]
    computing = [attempt.phases.index(name) for name in ("forward", "backward", "optimizer")]
    attempt.totals = tuple(total + (at in computing) * (1 << 62) for at, total in enumerate(attempt.totals))
    attempt.seen_ns += ns(5)
    assert_same(run, gather(run, attempt.seen_ns, ns(60)), random.Random(1))


def test_rows_of_several_steps_wait_in_what_is_stored():
    """They wait for a rank that is behind, also where the steps that all have passed are those of the last comparison."""
    rng = random.Random(5)
    run = run_of(*long_run(rng, 2, 120))
    for attempt in run.attempts.values():
        attempt.rows = {number: row for number, row in attempt.rows.items() if number == 1 or number % 3 == 0}
    facts = gather(run, max(attempt.seen_ns for attempt in run.attempts.values()), ns(60))
    first, second = (values_of(run.attempts[rank, 1]) for rank in range(2))
    engine = ColumnEngine(run, facts)
    fold_columns(engine, {(0, 1): first[:, :10], (1, 1): second[:, :10]})
    engine.groups.sweep()
    fold_columns(engine, {(0, 1): first[:, 10:20]})
    engine = stored(engine)
    fold_columns(engine, {(0, 1): first[:, 20:], (1, 1): second[:, 10:]})
    assert differing(engine.finish(), by_rows(run, facts)) == []
