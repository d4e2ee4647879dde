"""by_core.compute against the brute-force oracle of the causal rules on generated, well-formed histories."""

from __future__ import annotations

from hypothesis import given, note, settings
from support.account.account_history import assert_closes, run_of
from support.account.causal_oracle import oracle
from support.account.random_lives import LEAST_SECONDS, histories, process_of

from goodput.account.by_core.compute import compute
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
