"""States of accounts as bytes: an engine goes on from one as from itself, and what cannot be used is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.account.account_history import Process, run_of

from goodput.account.by_core.compute import finishing
from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import gather
from goodput.aggregator.run_states import StateError, decode, encode
from goodput.slices import result_of


def ranks(steps: int = 30, **more) -> list[Process]:
    found = [Process(rank, world_size=3, **more) for rank in range(3)]
    for one in found:
        one.between(restore=2).steps(
            steps, forward=1 + one.rank / 4, communication=0.75 - one.rank / 4, samples=3
        )
    return found


def engine_of(run, until: int | None = None) -> CoreEngine:
    """With the first so many rows of each attempt."""
    engine = CoreEngine(run, facts_of(run), 60.0)
    for key, attempt in run.attempts.items():
        engine.rows(key, attempt.ordered_rows()[:until])
    return engine


def facts_of(run):
    return gather(run, max(attempt.last_ns for attempt in run.attempts.values()), 0)


def account_of(engine: CoreEngine):
    return result_of(finishing(engine))


@pytest.mark.parametrize("until", [0, 1, 8, 16, 29])
def test_engine_goes_on_from_a_state_after_any_row(until):
    run = run_of(*ranks())
    state = decode(encode(engine_of(run, until)))
    assert state.numbers() == dict.fromkeys(run.attempts, until)
    rows = [row for one in run.attempts.values() for row in one.ordered_rows()[:until]]
    assert state.end_ns == max((row.end_ns for row in rows), default=0)
    engine = state.engine(run, facts_of(run), 60.0)
    for key, attempt in run.attempts.items():
        engine.rows(key, attempt.ordered_rows()[until:])
    assert account_of(engine) == account_of(engine_of(run))


def test_damaged_bodies_are_refused():
    body, rng = encode(engine_of(run_of(*ranks(5)))), random.Random(1)
    for _ in range(300):
        at = rng.randrange(len(body))
        with pytest.raises(StateError):
            decode(body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :])
    for short in (b"", body[:16], body[:17], body[:-1]):
        with pytest.raises(StateError):
            decode(short)


def test_state_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr("goodput.aggregator.run_states._VERSION_BYTES", b"\2\0")
    body = encode(engine_of(run_of(*ranks(5))))
    monkeypatch.undo()
    with pytest.raises(StateError, match="another version"):
        decode(body)


def test_state_with_attempts_that_the_run_has_not_is_refused():
    processes = ranks(5)
    state, fewer = decode(encode(engine_of(run_of(*processes)))), run_of(*processes[:2])
    with pytest.raises(StateError, match="attempts"):
        state.engine(fewer, facts_of(fewer), 60.0)


@pytest.mark.parametrize("changed", ["lost", "group", "stage", "states", "later"])
def test_state_that_is_not_right_any_more_is_not_used(changed):
    """Steps became lost, or attempts declared something else, or a rank reported steps that others made without it."""
    processes = ranks()
    some = processes[:2] if changed == "later" else processes
    state = decode(encode(engine_of(run_of(*some))))
    if changed == "lost":
        again = [
            Process(one.rank, 2, start=one.now_ns / 1e9 + 5, world_size=3).resumed(9) for one in processes
        ]
        processes = [*(one.killed(after=1) for one in processes), *(one.steps(2, forward=1) for one in again)]
    run = run_of(*processes)
    for at, attempt in enumerate(run.attempts.values()):
        if changed == "group":
            attempt.group = f"g{at}"
        elif changed == "stage":
            attempt.stage = at
        elif changed == "states":
            attempt.phase_states = {"augment": "loader"}
            attempt.phases = (*attempt.phases[:-1], "augment")
    assert state.engine(run, facts_of(run), 60.0) is None
    same = run_of(*ranks())
    if changed != "later":
        assert state.engine(replace(same, name=run.name), facts_of(same), 60.0) is not None
