"""`replay` against a brute-force account on generated logs, to the nanosecond."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from support.account.account_history import each_rank
from support.account.runlog_history import earlier, log
from support.account.runlog_oracle import account

from goodput.account import document
from goodput.account.account import Account
from goodput.account.states import STATES
from goodput.runlog import replay

LOGS, LOGS_PER_TEST = 400, 50
STALL_SECONDS = 0.5
SHARES_MOST = 16
# The last one gives logs that begin before time zero and end after it.
EARLIER_SECONDS = 1_700_000_000 + 10**6, 10**6, 3


@functools.cache
def generated(seed: int) -> tuple[list[str], dict]:
    """The lines of a log, and the oracle's account of it."""
    lines = log(seed)
    return lines, account("\n".join(lines), STALL_SECONDS)


def replayed(path: Path, lines: list[str], stall_seconds: float = STALL_SECONDS) -> Account:
    path.write_text("\n".join(lines) + "\n")
    (found,) = replay(str(path), stall_seconds=stall_seconds)
    return found.account


def assert_agrees(found: Account, expected: dict) -> None:
    """Every number of the account equals the oracle's, to the nanosecond."""
    assert (found.start_ns, found.end_ns) == (expected["start"], expected["end"])
    assert [rank.rank for rank in each_rank(found)] == list(expected["ranks"])
    for rank in each_rank(found):
        theirs = expected["ranks"][rank.rank]
        assert sum(rank.states) == rank.wall_ns == theirs["wall"]
        mine = {state: ns for state, ns in zip(STATES, rank.states, strict=True) if ns}
        assert mine == {state: ns for state, ns in theirs["states"].items() if ns}, f"rank {rank.rank}"
        assert (rank.kept_steps, rank.lost_steps) == (theirs["kept"], theirs["lost"])
        assert (rank.kept_ns, rank.devices) == (theirs["kept_ns"], theirs["devices"])
        assert rank.kept_samples == theirs["samples"]
    assert [(r.attempt, r.time_ns, r.resume_step, r.lost_steps, r.lost_gpu_ns) for r in found.restarts] == [
        (r["attempt"], r["time"], r["resume_step"], r["lost_steps"], r["lost_gpu_ns"])
        for r in expected["restarts"]
    ]
    for ours, theirs in zip(found.restarts, expected["restarts"], strict=True):
        assert ours.down_gpu_ns == theirs["down"] * ours.devices
    assert (found.commits, found.failures, found.alive_ns) == (
        expected["commits"],
        expected["failures"],
        expected["alive"],
    )
    assert_figures(found, expected)


def near(value, expected) -> bool:
    return value is expected is None or value == pytest.approx(float(expected), rel=1e-12, abs=1e-15)


def assert_figures(found: Account, expected: dict) -> None:
    for factor in ("availability", "step_efficiency", "goodput", "mfu", "compute_efficiency"):
        assert near(found.raw_ratio(factor), expected[factor]), factor
    straggler = found.straggler
    assert near(straggler.slowdown(), expected["slowdown"])
    for name, ours in (
        ("by", straggler.shares()),
        ("hosts", straggler.host_shares()),
        ("stages", straggler.stage_shares()),
    ):
        # The remainder of a tie that does not divide goes to one rank: a nanosecond a step.
        theirs = {who: share for who, share in expected[name].items() if share}
        assert {who: pytest.approx(float(share), abs=1e-5) for who, share in theirs.items()} == {
            **dict.fromkeys(theirs, 0.0),
            **dict(ours),
        }
        assert len(ours) <= SHARES_MOST


@pytest.mark.parametrize("first", range(0, LOGS, LOGS_PER_TEST))
def test_generated_logs_equal_the_oracle(tmp_path, first):
    for seed in range(first, first + LOGS_PER_TEST):
        lines, expected = generated(seed)
        try:
            assert_agrees(replayed(tmp_path / "log", lines), expected)
        except AssertionError as error:
            raise AssertionError(f"log({seed})") from error


def test_account_is_the_same_before_time_zero(tmp_path):
    """The account does not depend on where a log's clock has its zero."""
    for seed in range(48):
        lines, expected = generated(seed)
        ns = EARLIER_SECONDS[seed % 3] * 10**9
        restarts = [{**one, "time": one["time"] - ns} for one in expected["restarts"]]
        moved = {"start": expected["start"] - ns, "end": expected["end"] - ns, "restarts": restarts}
        try:
            assert_agrees(replayed(tmp_path / "log", earlier(lines, ns)), {**expected, **moved})
        except AssertionError as error:
            raise AssertionError(f"log({seed}), {ns} ns earlier") from error


def test_generated_logs_cover_every_case():
    """Otherwise agreement with the oracle would mean little."""
    states, seen = (
        set(),
        {"lost again": 0, "provisional": 0, "begun only": 0, "unseen": 0, "elastic": 0, "open": 0},
    )
    for seed in range(LOGS):
        lines, expected = generated(seed)
        for rank in expected["ranks"].values():
            states |= {state for state, ns in rank["states"].items() if ns}
        lost = sum(rank["lost"] for rank in expected["ranks"].values())
        by_restarts = sum(restart["lost_steps"] for restart in expected["restarts"])
        text = "".join(lines)
        seen["lost again"] += lost > by_restarts
        seen["provisional"] += lost > by_restarts and expected["failures"] > len(expected["restarts"])
        seen["begun only"] += '"committed":false' in text and '"committed":true' not in text
        seen["unseen"] += any(
            rank["states"].get("unobserved") == rank["wall"] for rank in expected["ranks"].values()
        )
        seen["elastic"] += len({rank["wall"] for rank in expected["ranks"].values()}) > 1
        seen["open"] += '"run_end"' not in text
    assert states == {*STATES} - {"launch", "bubble"}
    assert min(seen.values()) >= 10, seen


@pytest.mark.parametrize(("first", "then"), [(7, 75), (8, 75)])
def test_first_step_is_compared_with_next_15(tmp_path, first, then):
    """The median of the next 15 is the second length of 7 short ones, and the first of 8."""
    lines, at = ['{"kind":"attempt","time":0,"rank":0,"attempt":1}'], 0
    for step, ms in enumerate([100, *[16] * first, *[20] * then]):
        at += ms
        place = f'"time":{at / 1000},"rank":0,"attempt":1,"step":{step}'
        lines.append(f'{{"kind":"step",{place},"seconds":{ms / 1000},"phases":{{"forward":{ms / 1000}}}}}')
    found = replayed(tmp_path / "log", lines)
    assert_agrees(found, account("\n".join(lines), STALL_SECONDS))
    assert document(found)["states"]["compile"] == {7: 0.08, 8: 0.084}[first]


def test_rank_beyond_the_world_is_expected(tmp_path):
    lines = ['{"kind":"attempt","time":0,"rank":2,"attempt":1,"world_size":2}', '{"kind":"run_end","time":3}']
    found = replayed(tmp_path / "log", lines)
    assert_agrees(found, account("\n".join(lines), STALL_SECONDS))
    assert [rank.wall_ns for rank in each_rank(found)] == [3 * 10**9] * 3
