"""The share of time on the device clock: by hand, in windows, weighted by devices, and as text."""

from __future__ import annotations

import pytest
from support.account.account_history import Process, ns

from goodput.account import Run, compute, document
from goodput.account.text import render
from goodput.causes import explain


def run_of(*processes: Process) -> Run:
    return Run("r", {(one.rank, one.number): one.attempt() for one in processes})


def share(run: Run, now: float, **given) -> float:
    return document(compute(run, ns(now), **given))["coverage"]["device_clock"]


def test_device_clock_share_by_hand():
    one = Process().between(none=2)
    for device in (True, True, False, True):
        one.step(forward=1.5, loader=0.5, device=device)
    one.between(checkpoint=2).finished()
    # Three steps of 2 s in 12 s.
    assert share(run_of(one), 12) == 0.5
    # Of the second half of the second step to the end of the third, 3 s: 1 s.
    assert share(run_of(one), 12, window=(ns(5), ns(8))) == pytest.approx(1 / 3)


def test_share_is_weighted_by_observed_devices():
    both = {"world_size": 3}
    one = Process(0, devices=3, **both).step(forward=4, device=True).finished()
    other = Process(1, devices=1, **both).step(forward=4).finished()
    assert share(run_of(one, other), 4) == 12 / 16


def test_lost_steps_count_as_measured():
    first = Process(0).step(forward=1, device=True).step(forward=1, device=True).failed()
    second = Process(0, 2, start=2).resumed(0).step(forward=2).finished()
    assert share(run_of(first, second), 4) == 0.5


@pytest.mark.parametrize("cumulative_ns", [-5, 10**15])
def test_implausible_device_time_is_cut(cumulative_ns):
    one = Process().step(forward=1).step(forward=1).finished()
    one.rows[1] = one.rows[1]._replace(device_ns=cumulative_ns)
    assert share(run_of(one), 2) == (0.0 if cumulative_ns < 0 else 0.5)


def test_missing_rows_lose_no_device_time():
    one = Process()
    for i in range(10):
        one.step(forward=1, device=i % 2 == 0)
    one.finished()
    attempt = one.attempt(rows=[one.rows[0], one.rows[4], one.rows[9]])
    assert share(Run("r", {(0, 1): attempt}), 10) == 0.5


@pytest.mark.parametrize(("device", "words"), [(True, "100.0 % on the device clock"), (False, "host clock")])
def test_text_names_the_device_clock_share(device, words):
    account = compute(run_of(Process().step(forward=1, device=device).finished()), ns(1))
    text = " ".join(render(document(account, explain(account)), full=True).split())
    assert f"time 100.0 % ({words})" in text
