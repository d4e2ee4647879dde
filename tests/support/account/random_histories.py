"""Hostile histories: rows need not be what any honest rank would write, only of the types of a checked report.

Totals go back, ends come before starts, attempts overlap, clocks jump, numbers are missing.
"""

from __future__ import annotations

from hypothesis import strategies as st
from support.account.account_history import PHASES

from goodput.account import Attempt, Event, Row, Run
from goodput.account.states import STATES

MOST = (1 << 62) - 1
small = st.integers(0, 20 * 10**9)
number_ns = st.one_of(small, small, st.integers(0, MOST), st.sampled_from([0, 1, MOST]))
totals = st.lists(number_ns, min_size=len(PHASES), max_size=len(PHASES)).map(tuple)
narrow = st.lists(small, min_size=3, max_size=3).map(tuple)
rate = st.none() | st.floats(1e-3, 1e29)


@st.composite
def rows(draw):
    start, end = sorted((draw(number_ns), draw(number_ns)))
    spent, outside = draw(totals | narrow), draw(totals | narrow)
    return Row(
        draw(st.integers(1, 12) | st.integers(1, MOST)),
        draw(st.integers(0, 12) | st.integers(0, MOST)),
        *(start, end, draw(st.integers(0, MOST)), spent, outside),
    )


events = st.builds(
    Event,
    st.integers(1, 6),
    st.sampled_from(["checkpoint_begun", "checkpoint_committed", "resumed", "mark", "unheard of"]),
    number_ns,
    st.integers(-1, 12) | st.integers(-1, MOST),
)


@st.composite
def attempts(draw, rank: int, number: int):
    attempt = Attempt(
        rank=rank,
        attempt=number,
        start_ns=draw(number_ns),
        host=draw(st.sampled_from(["n0", "n1", ""])),
        device=draw(st.sampled_from(["", "a", "b"])),
        devices=draw(st.sampled_from([1, 1, 8, 1 << 16])),
        group=draw(st.sampled_from(["", "a"])),
        world_size=draw(st.integers(1, 6)),
        flops_per_step=draw(rate),
        peak_flops_per_second=draw(rate),
        gpu_hour_cost=draw(rate),
        phases=(*PHASES[:-1], "mine"),
        phase_states={"mine": draw(st.sampled_from([*STATES, "nonsense", ""]))},
        seen_ns=draw(number_ns),
        last_ns=draw(number_ns),
        phase=draw(st.sampled_from([*PHASES[:-1], "mine"])),
        totals=draw(totals | st.just(())),
        alive=draw(st.booleans()),
        ended=draw(st.sampled_from(["", "", "finished", "failed", "resumed"])),
        end_ns=draw(number_ns),
        received_ns=draw(number_ns),
    )
    attempt.add_rows(draw(st.lists(rows(), max_size=6)))
    attempt.add_events(draw(st.lists(events, max_size=3)))
    return attempt


@st.composite
def runs(draw):
    keys = draw(st.sets(st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 3, 9])), min_size=1, max_size=6))
    run = Run("r1", {key: draw(attempts(*key)) for key in sorted(keys)})
    run.start_ns, run.end_ns = draw(st.none() | number_ns), draw(st.none() | number_ns)
    return run
