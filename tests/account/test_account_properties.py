"""For any input, each rank's states are whole, not negative, and sum to its wall time exactly.

The rows here need not be what any honest rank would write: totals go back, ends come before starts, attempts
overlap, clocks jump, numbers are missing. They are of the types that a checked report has, nothing more.
"""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from support.account.account_history import PHASES, Process, assert_closes, ns, run_of
from support.account.random_histories import number_ns, runs

from goodput.account import Run, compute, document
from goodput.account.account import FACTORS
from goodput.account.text import render, state_rows
from goodput.causes import explain


@settings(max_examples=80)
@given(runs(), number_ns, st.none() | st.just(30.0), st.sampled_from([1e-9, 1.0, 60.0]))
def test_states_close_for_hostile_histories(run, now_ns, stale_seconds, stall_seconds):
    account = compute(run, now_ns, stale_seconds=stale_seconds, stall_seconds=stall_seconds)
    assert_closes(account, elastic=True)
    for rank in account.ranks:
        assert rank.kept_steps >= 0 and rank.lost_steps >= 0
        assert 0 <= rank.kept_ns <= account.end_ns - account.start_ns
    for factor in ("availability", "step_efficiency", "goodput"):
        ratio = account.ratio(factor)
        assert ratio is None or 0 <= ratio <= 1
    assert all(restart.down_gpu_ns >= 0 and restart.lost_gpu_ns >= 0 for restart in account.restarts)
    # Document, text and causes must work for any account.
    found = document(account, explain(account))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert state_rows(found) == [] or sum(round(10 * float(row[2])) for row in state_rows(found)) == 1000
    assert "goodput" in render(found, full=True)


@settings(max_examples=50)
@given(runs(), number_ns)
def test_order_of_attempts_does_not_matter(run, now_ns):
    turned = Run(run.name, dict(reversed(run.attempts.items())), run.start_ns, run.end_ns)
    assert compute(turned, now_ns) == compute(run, now_ns)


@settings(max_examples=50)
@given(runs(), st.lists(number_ns, min_size=2, max_size=3))
def test_compute_does_not_change_the_run(run, moments):
    first = [compute(run, now_ns) for now_ns in moments]
    assert [compute(run, now_ns) for now_ns in moments] == first


@st.composite
def honest_runs(draw):
    """Well-formed reports with all factors known."""
    world, processes, start = draw(st.integers(1, 3)), [], 0.0
    seconds = st.integers(0, 30).map(lambda tenths: tenths / 8)
    part = st.dictionaries(st.sampled_from(PHASES), seconds, max_size=4)
    for number in range(1, draw(st.integers(1, 3)) + 1):
        for rank in range(world):
            one = Process(
                rank, number, start, flops_per_step=2e12, peak_flops_per_second=8e12, world_size=world
            )
            one.between(**draw(part))
            one.step_next = draw(st.integers(0, 4))
            for _ in range(draw(st.integers(0, 5))):
                one.step(**draw(part)).between(**draw(part))
            processes.append(draw(st.sampled_from([one.finished, one.failed, one.killed]))())
        start = max(one.now_ns for one in processes) / 1e9 + draw(seconds)
    return run_of(*processes)


@settings(max_examples=50)
@given(honest_runs())
def test_factors_multiply_to_mfu(run):
    account = compute(run, ns(1000))
    assert_closes(account)
    ratios = {factor: account.ratio(factor) for factor in FACTORS}
    if ratios["step_efficiency"] is not None:
        product = ratios["availability"] * ratios["step_efficiency"]
        assert abs(ratios["goodput"] - product) <= 1e-12
    if ratios["compute_efficiency"] is not None:
        assert abs(ratios["mfu"] - ratios["goodput"] * ratios["compute_efficiency"]) <= 1e-9 * (
            1 + ratios["mfu"]
        )


@settings(max_examples=50)
@given(honest_runs(), st.randoms(use_true_random=False))
def test_missing_rows_lose_no_time_or_step(run, chance):
    """The newest row stays, as in an agent's backlog; any of the others may be missing."""
    whole = compute(run, ns(1000))
    for attempt in run.attempts.values():
        ordered = attempt.ordered_rows()
        attempt.rows = {r.number: r for r in ordered[:-1] if chance.random() < 0.5} | {
            r.number: r for r in ordered[-1:]
        }
    part = compute(run, ns(1000))
    assert_closes(part)
    for one, other in zip(whole.ranks, part.ranks, strict=True):
        assert (one.kept_steps, one.lost_steps) == (other.kept_steps, other.lost_steps)
    assert [r.resume_step for r in whole.restarts] == [r.resume_step for r in part.restarts]
