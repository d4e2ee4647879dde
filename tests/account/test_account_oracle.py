"""compute() against the brute-force oracle on generated, well-formed histories."""

from __future__ import annotations

from hypothesis import given, note, settings
from hypothesis import strategies as st
from support.account.account_history import PHASES, Process, assert_closes, run_of
from support.account.account_oracle import Life, Step, oracle

from goodput.account import compute
from goodput.account.states import STATES

MS = 1_000_000
LEAST_SECONDS = 0.5
usual_ms = st.integers(0, 40)
# Sometimes a stall, or a planned phase of the same length, which is none.
any_ms = st.one_of(usual_ms, usual_ms, usual_ms, st.integers(0, 4000))


def parts(phases, length=usual_ms, most=4):
    return st.lists(st.tuples(st.sampled_from(phases), length.map(lambda ms: ms * MS)), max_size=most)


@st.composite
def one_attempt(draw, number: int, start_ns: int, resume: int | None, ranks: list[int], last: bool):
    """The lives of one attempt. Ranks do the same steps; at the end some did one more."""
    first = 0 if resume is None else resume + 1
    declared = resume is not None and draw(st.booleans())
    count = draw(st.integers(0, 7))
    # Enough like steps that one long one does not move the 99th percentile.
    bulk = [("forward", 10 * MS), ("communication", MS)] if count and draw(st.integers(0, 4)) == 0 else None
    ends = (
        ["killed", "failed", "finished"]
        if not last
        else ["killed", "failed", "finished", "finished", "alive"]
    )
    end = draw(st.sampled_from(ends))
    lives = []
    for rank in ranks:
        # A long step among few moves the threshold beyond all stalls, so there it is short.
        steps = [
            Step(first + i, draw(parts(PHASES, any_ms if bulk else usual_ms)), draw(parts(PHASES, any_ms, 2)))
            for i in range(max(0, count - draw(st.integers(0, 1))))
        ]
        if bulk and steps:
            steps += [Step(steps[-1].index + 1 + i, bulk) for i in range(130)]
        saves = [(s.index, draw(st.booleans())) for s in steps if draw(st.integers(0, 3)) == 0]
        life = Life(
            rank=rank,
            attempt=number,
            start_ns=start_ns + draw(st.integers(0, 20)) * MS,
            startup=draw(parts(PHASES, any_ms, 3)),
            # Some ranks declare nothing, some resume from an earlier step than the others.
            declared=max(-1, resume - draw(st.sampled_from([0, 0, 0, 1, 2])))
            if declared and draw(st.integers(0, 3))
            else None,
            steps=steps,
            tail=draw(parts(PHASES, any_ms, 3)),
            silence_ns=0 if end in ("finished", "failed") else draw(any_ms) * MS,
            end=end,
            saves=saves,
            group="ab"[rank // 2],
            devices=1 + rank,
        )
        lives.append(life)
    return lives


@st.composite
def histories(draw):
    """Lives of all attempts of a run, and now."""
    ranks = list(range(draw(st.integers(1, 4))))
    attempts = draw(st.integers(1, 4))
    lives, start_ns, resume = [], 1_000 * MS, None
    for number in range(1, attempts + 1):
        there = [r for r in ranks if draw(st.integers(0, 5))] or [
            0
        ]  # Not every rank takes part in every attempt.
        lives += draw(one_attempt(number, start_ns, resume, there, number == attempts))
        start_ns = max(life.end_ns() for life in lives) + draw(any_ms) * MS
        done = max((s.index for life in lives for s in life.steps), default=-1)
        resume = draw(st.integers(-1, done))
    return lives, start_ns + draw(any_ms) * MS


def process_of(life: Life) -> Process:
    """The same life as its page records it."""
    one = Process(life.rank, life.attempt, life.start_ns / 1e9, group=life.group, devices=life.devices)
    if life.declared is not None:
        one.resumed(life.declared)
    for phase, ns in life.startup:
        one.between(**{phase: ns / 1e9})
    for i, step in enumerate(life.steps):
        for phase, ns in step.gap if i else []:
            one.between(**{phase: ns / 1e9})
        one.step_next = step.index
        began_ns = one.now_ns
        spend(one, step.parts)
        one.step(step.index)
        one.rows[-1] = one.rows[-1]._replace(start_ns=began_ns)
        for saved, committed in life.saves:
            if saved == step.index:
                one.saved(saved, committed)
    spend(one, life.tail)
    if life.end == "killed":
        return one.killed(after=life.silence_ns / 1e9)
    if life.end == "alive":
        return one.silent(after=life.silence_ns / 1e9)
    return one.finished() if life.end == "finished" else one.failed()


def spend(one: Process, parts) -> None:
    for phase, ns in parts:
        one.begun(**{phase: ns / 1e9})


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
