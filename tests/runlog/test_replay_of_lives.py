"""`replay` of exported logs against the brute-force oracle, to the nanosecond: as written, shuffled and with repetitions."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from support.account.account_history import assert_closes, run_of
from support.account.account_oracle import Life, oracle
from support.account.random_lives import LEAST_SECONDS, histories, process_of

from goodput.account.states import STATES
from goodput.log_lines import AttemptLines, line
from goodput.runlog import core_folding, replay


def exported(lives: list[Life]) -> list[bytes]:
    """Their log, in order of time."""
    world = 1 + max(life.rank for life in lives)
    entries = [(0, line("run", min(life.start_ns for life in lives), run="r1"))]
    for attempt in run_of(*map(process_of, lives)).attempts.values():
        attempt.world_size = world
        events = list(attempt.events.values())
        lines = AttemptLines(attempt)
        entries.append(lines.begin(attempt, events))
        entries += lines.rows(attempt.ordered_rows(), attempt.phases, attempt.phase_states)
        entries += [entry for event in events if (entry := lines.event(event)) is not None]
        entries.append(lines.last(attempt))
    return [text for _, text in sorted(entries, key=lambda entry: entry[0])]


@settings(max_examples=60)
@given(histories(), st.integers(0, 2**32))
def test_replay_equals_the_oracle(history, seed):
    lives, _ = history
    now_ns = max(life.end_ns() for life in lives)
    lines, dice = exported(lives), random.Random(seed)
    order = dice.choice(["plain", "shuffled", "repeated", "by rank"])
    # Of a step without length only the order of the file tells whether a phase that ends with it came before it.
    has_length = all(sum(ns for _, ns in step.parts) for life in lives for step in life.steps)
    note(order)
    if order == "shuffled" and has_length:
        dice.shuffle(lines)
    elif order == "repeated":
        lines = [text for text in lines for _ in range(dice.choice([1, 1, 2, 3]))]
    elif order == "by rank":
        lines.sort(key=lambda text: text.partition(b'"rank"')[2][:3])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        path.write_bytes(b"".join(lines))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core_folding, "AHEAD_ROWS", dice.choice([1, 4, 2048]))
            (found,) = replay(str(path), stall_seconds=LEAST_SECONDS)
    account, want = found.account, oracle(lives, now_ns, round(LEAST_SECONDS * 1e9))
    assert_closes(account)
    assert (account.status, account.end_ns, account.clamped) == (want.status, want.end_ns, 0)
    for rank in account.ranks:
        note(f"rank {rank.rank}")
        states = {state: ns for state, ns in zip(STATES, rank.states, strict=True) if ns}
        assert states == {state: ns for state, ns in want.states[rank.rank].items() if ns}
        assert (rank.kept_steps, rank.lost_steps) == (want.kept[rank.rank], want.lost[rank.rank])
        assert rank.kept_ns == want.kept_ns[rank.rank]
    for restart in account.restarts:
        costs = want.restarts[restart.attempt]
        lost = (restart.down_gpu_ns, restart.lost_steps, restart.lost_gpu_ns)
        assert lost == (costs["down_ns"], costs["lost_steps"], costs["lost_ns"])
    assert account.straggler.length_ns == want.length_ns
