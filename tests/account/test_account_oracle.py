"""compute() against the brute-force oracle on generated, well-formed histories."""

from __future__ import annotations

from hypothesis import given, note, settings
from hypothesis import strategies as st
from support.account.account_history import assert_closes, run_of
from support.account.account_oracle import Life, Step, oracle
from support.account.random_lives import LEAST_SECONDS, MS, histories, parts, process_of

from goodput.account import compute
from goodput.account.states import STATES


@settings(max_examples=60)
@given(histories())
def test_states_steps_and_restarts_equal_the_oracle(history):
    lives, now_ns = history
    want = oracle(lives, now_ns, round(LEAST_SECONDS * 1e9))
    run = run_of(*map(process_of, lives))
    for attempt in run.attempts.values():
        attempt.world_size = 1 + max(life.rank for life in lives)
    account = compute(run, now_ns, stall_seconds=LEAST_SECONDS)
    assert_closes(account)
    assert (account.status, account.end_ns, account.clamped) == (want.status, want.end_ns, 0)
    for rank in account.ranks:
        found = {state: ns for state, ns in zip(STATES, rank.states, strict=True) if ns}
        note(f"rank {rank.rank}")
        assert found == {state: ns for state, ns in want.states[rank.rank].items() if ns}
        assert (rank.kept_steps, rank.lost_steps) == (want.kept[rank.rank], want.lost[rank.rank])
        assert rank.kept_ns == want.kept_ns[rank.rank]
    for restart in account.restarts:
        costs = want.restarts.pop(restart.attempt)
        assert restart.resume_step == want.points[restart.attempt]
        found = (restart.down_gpu_ns, restart.lost_steps, restart.lost_gpu_ns)
        assert found == (costs["down_ns"], costs["lost_steps"], costs["lost_ns"])
    assert not want.restarts
    assert account.straggler.length_ns == want.length_ns
    assert sum(account.straggler.caused_ns.values()) == account.straggler.waited_ns


@settings(max_examples=50)
@given(st.integers(2, 5), st.integers(1, 6), st.data())
def test_slowdown_equals_the_what_if_analysis(ranks, steps, data):
    """With one collective per step all ranks' steps are equally long, so the excess is the cost."""
    lives = [Life(r, 1, 0, [], None, [], [], 0, "finished") for r in range(ranks)]
    for index in range(steps):
        own = [
            data.draw(parts(["loader", "h2d", "forward", "evaluation"], st.integers(1, 40)))
            for _ in range(ranks)
        ]
        busy = [sum(ns for _, ns in one) for one in own]
        shared = data.draw(st.integers(0, 5)) * MS
        for life, one, ns in zip(lives, own, busy, strict=True):
            life.steps.append(Step(index, [*one, ("communication", shared + max(busy) - ns)]))
    want = oracle(lives, 0, 10**12)
    account = compute(run_of(*map(process_of, lives)), 0, stall_seconds=1000)
    if not want.even_ns:
        assert account.straggler.slowdown() is None
    else:
        assert account.straggler.length_ns == want.length_ns
        assert account.straggler.length_ns - account.straggler.waited_ns == want.even_ns
        assert account.straggler.slowdown() == float(want.length_ns / want.even_ns)
    assert sum(account.straggler.caused_ns.values()) == account.straggler.waited_ns
