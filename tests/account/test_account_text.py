"""The account for people: percents that close, one line per trouble, every cause with its advice."""

import pytest
from account_history import Process, ns, run_of
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput.account import compute, document
from goodput.account.states import MEANINGS, STATES
from goodput.account.text import render, state_rows, tenths
from goodput.causes import advisers, explain


def text_of(*processes, now=100.0):
    account = compute(run_of(*processes), ns(now))
    found = document(account, explain(account))
    return found, render(found)


def test_tenths_round_each_part_and_the_first_as_it_reads_elsewhere():
    assert tenths([1, 1, 1]) == [333, 334, 333]
    assert tenths([0, 1, 1, 1]) == [0, 334, 333, 333]
    assert tenths([1005, 1005, 0, 7990]) == [101, 100, 0, 799]
    assert tenths([2, 1, 0]) == [667, 333, 0]
    assert tenths([0.0004, 999.9996]) == [0, 1000]
    assert tenths([]) == [] and tenths([0, 0]) == [0, 0]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1e15), max_size=17))
def test_tenths_sum_to_a_thousand_and_are_within_one_of_exact(parts):
    rounded = tenths(parts)
    total = sum(parts)
    assert sum(rounded) == (1000 if total > 0 else 0)
    assert all(abs(r - 1000 * part / total) <= 1 for r, part in zip(rounded, parts, strict=True) if total > 0)


def test_the_table_closes_and_fits_a_terminal():
    ranks = [
        Process(r, world_size=3, flops_per_step=1e12, peak_flops_per_second=4e12)
        .between(none=2)
        .steps(6, loader=0.3 * r + 0.1, forward=1, communication=0.6 - 0.3 * r)
        .finished()
        for r in (0, 1, 2)
    ]
    found, text = text_of(*ranks)
    flat = " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    assert "run r1: finished, 3 ranks, 12.2 s, 36.6 GPU-seconds" in text
    assert sum(float(row[2]) for row in state_rows(found)) == pytest.approx(100.0)
    assert (
        "slow rank: 2 on n2 (loader), which explains 100.0 % of the waiting; steps take 1.21x as long" in flat
    )
    assert f"MFU {100 * 6 / (4 * 12.2):.1f} %" in text
    # Loader 6 × (0.1 + 0.4 + 0.7) s, startup 3 × 2 s, straggler 6 × (0.6 + 0.3) s.
    assert (
        "largest cause: loader, 19.7 % of all GPU time; without it the run would be at most 1.24x as fast"
        in flat
    )


def test_restarts_say_where_they_went_on():
    one = Process().steps(5, forward=1).killed()
    two = Process(attempt=2, start=7).resumed(2).step(forward=1).killed()
    three = Process(attempt=3, start=9).resumed(-1).step(forward=1).killed()
    text = text_of(one, two, three, now=12)[1]
    assert "restart 1: down 2.00 s, 2 steps lost (2.00 GPU-seconds), resumed after step 2" in text
    assert "restart 2: down 1.00 s, 4 steps lost (4.00 GPU-seconds), resumed from the beginning" in text
    unknown = text_of(Process().steps(5, forward=1).killed(), Process(attempt=2, start=7), now=8)[1]
    assert "resumed at an unknown step" in unknown and "None" not in unknown


def test_what_is_unknown_is_said():
    text = text_of(Process().between(none=3), now=3)[1]
    assert "step efficiency unknown" in text and "MFU unknown = goodput x compute efficiency unknown" in text


def test_every_idle_state_has_its_cause_and_only_useful_time_has_none():
    assert set(advisers()) == set(STATES) - {"productive"}
    assert set(MEANINGS) == set(STATES)


def test_advice_is_one_line_for_every_state():
    account = compute(run_of(Process().steps(2, forward=1).finished()), ns(9))
    for index, state in enumerate(STATES):
        account.ranks[0].states[index] += ns(1)
        account.end_ns += ns(1)
        found = {cause["state"]: cause for cause in explain(account)}
        if state != "productive":
            advice = found[state]["advice"]
            assert advice.endswith(".") and "\n" not in advice and 20 < len(advice) < 250
    weights = [cause["gpu_seconds"] for cause in explain(account)]
    assert weights == sorted(weights, reverse=True) and len(weights) == len(STATES) - 1


def test_loader_advice_tells_one_rank_from_all():
    def advice(*waits):
        ranks = [Process(r).step(forward=1, loader=wait).finished() for r, wait in enumerate(waits)]
        return next(c["advice"] for c in text_of(*ranks)[0]["causes"] if c["state"] == "loader")

    assert "ank 2 on n2 waits" in advice(0.1, 0.1, 5)
    assert "All ranks wait" in advice(1, 1.5, 2)
    assert "All ranks wait" in advice(5)


def test_lost_advice_counts():
    one = Process().steps(5, forward=1).killed()
    two = Process(attempt=2, start=7).resumed(2).step(forward=1).finished()
    advice = next(c["advice"] for c in text_of(one, two)[0]["causes"] if c["state"] == "lost")
    assert advice.startswith("2 rank-steps were lost in 1 restart:")
