"""Random lives of rank processes, well-formed, and the same as their pages record them."""

from __future__ import annotations

from hypothesis import strategies as st
from support.account.account_history import PHASES, Process
from support.account.account_oracle import Life, Step

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
