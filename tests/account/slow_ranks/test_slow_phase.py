"""The phase in which the culprit is slow: of an account, of its windows, of the last minutes, and of a run log."""

from __future__ import annotations

import json

import pytest
from support.account.account_history import Process, account_of, ns, run_of
from support.account.pipeline_simulator import Training

from goodput.account import compute, document
from goodput.account.text import render
from goodput.aggregator.accounts.recent_stragglers import RecentStragglers
from goodput.causes import explain
from goodput.runlog.replay import replay

USUAL = {"loader": 0.1, "h2d": 0.05, "forward": 1.0, "backward": 2.0, "optimizer": 0.1}


def train(ranks: list[Process], steps: int, slow: dict[str, float] | None = None, hung: float = 0.0) -> None:
    """All ranks in lock step; the last one spends `slow` longer in these phases, and `hung` in its first step's forward."""
    for at in range(steps):
        longer = dict(slow or {})
        longer["forward"] = longer.get("forward", 0.0) + hung * (at == 0)
        for one in ranks:
            own = {p: s + (longer.get(p, 0.0) if one is ranks[-1] else 0.0) for p, s in USUAL.items()}
            waits = sum(longer.values()) if one is not ranks[-1] else 0.0
            one.step(**own, communication=0.2 + waits)


def because(account) -> tuple:
    found = document(account)["straggler"]
    return found["culprit"], found["because"], found["because_phase"]


@pytest.mark.parametrize(
    "phase, state", [("forward", "productive"), ("backward", "productive"), ("h2d", "h2d")]
)
def test_phase_of_a_slow_rank_is_named(phase, state):
    ranks = [Process(rank) for rank in range(4)]
    train(ranks, 20, {phase: 0.5})
    assert because(account_of(*ranks)) == (3, state, phase)
    # Of both it is the one that is longer by more, not the one that takes longer.
    train(ranks, 20, {"forward": 0.1, "backward": 0.1})
    assert because(account_of(*ranks)) == (3, state, phase)


def test_own_phases_of_the_user_are_named():
    ranks = [Process(rank, user={"augment": "loader"}) for rank in range(3)]
    for one in ranks:
        slow = 0.5 * (one.rank == 2)
        one.steps(10, loader=0.2, augment=0.1 + slow, forward=1, communication=0.6 - slow).finished()
    assert because(account_of(*ranks)) == (2, "loader", "augment")


def test_time_in_no_phase_has_none():
    ranks = [Process(rank) for rank in range(3)]
    for one in ranks:
        slow = 0.5 * (one.rank == 2)
        one.steps(10, none=0.2 + slow, forward=1 + 0.01 * one.rank, communication=0.7 - slow).finished()
    assert because(account_of(*ranks)) == (2, "unattributed", None)


def test_last_minutes_in_no_phase_have_none():
    recent, ranks = RecentStragglers(), [Process(rank, user={"mine": "unattributed"}) for rank in range(3)]
    for phase, found in (("forward", None), ("none", None), ("mine", "mine")):
        for one in ranks:
            slow = 0.5 * (one.rank == 2)
            own = {"none": 0.2, "mine": 0.2, "forward": 1 + slow / 5}
            own[phase] += slow
            one.steps(40, **own, communication=0.7 - slow - slow / 5)
        sums = account_of(*ranks, now=ranks[0].now_ns / 1e9).straggler
        last = recent.of("r", ranks[0].now_ns, sums)
        assert last is None or (last.slow_rank(), last.slow_phase(2)) == (2, found)
        recent = RecentStragglers()
        recent.of("r", ranks[0].now_ns, sums)
    assert last is not None


def test_stalls_first_and_lost_steps_do_not_count():
    """A rank that is slow in backward has hung in forward, compiled there, and made steps that were lost."""
    ranks = [Process(rank) for rank in range(4)]
    train(ranks, 1, {"forward": 2.0})
    train(ranks, 20, {"backward": 0.3})
    train(ranks, 5, {"backward": 0.3}, hung=200.0)
    for one in ranks:
        one.saved()
    train(ranks, 9, {"forward": 3.0})
    again = [Process(one.rank, 2, start=one.killed().now_ns / 1e9 + 5).resumed(25) for one in ranks]
    train(again, 10, {"backward": 0.3})
    account = account_of(*ranks, *again)
    assert account.ratio("goodput") and because(account) == (3, "productive", "backward")
    times = account.straggler.phases[3, 1]
    assert times.steps == 24 and times.by_phase()["forward"] == ns(24 * 1.0)


def test_window_has_the_phase_of_its_own_time():
    ranks = [Process(rank) for rank in range(4)]
    train(ranks, 30, {"backward": 0.5})
    middle = ranks[0].now_ns
    train(ranks, 30, {"forward": 0.4})
    run, end = run_of(*ranks), ranks[0].now_ns
    assert because(compute(run, end))[2] == "backward"
    assert because(compute(run, end, window=(None, middle)))[2] == "backward"
    # Both edges lie within a step; as an account has the steps that ended, the first of them counts and the last does not.
    later = compute(run, end, window=(middle + ns(1), end - ns(1)))
    assert because(later) == (3, "productive", "forward")
    assert later.straggler.phases[3, 1].steps == 29


def test_last_minutes_have_their_own_phase():
    recent, ranks = RecentStragglers(), [Process(rank) for rank in range(4)]
    train(ranks, 500, {"backward": 0.5})
    assert recent.of("r", 0, account_of(*ranks, now=ranks[0].now_ns / 1e9).straggler) is None
    train(ranks, 20, {"forward": 0.5})
    sums = account_of(*ranks, now=ranks[0].now_ns / 1e9).straggler
    found = recent.of("r", ns(60), sums)
    assert found is not None and (found.slow_rank(), found.slow_phase(3)) == (3, "forward")
    assert sums.because_phase() == "backward", "over the whole life"


def test_phase_of_a_slow_stage_is_named():
    training = Training(4, 8, 2)
    account = account_of(
        *training.processes(10, lambda step, stage, replica, microbatch: 1.5 if stage == 2 else 1.0)
    )
    found = document(account)["straggler"]
    assert (found["culprit_stage"], found["stage_because_phase"]) == (2, "backward")
    assert found["culprit"] is None and found["because_phase"] is None
    assert "slow stage: 2 (backward), which explains" in " ".join(
        render(found_in(account), full=True).split()
    )


def found_in(account) -> dict:
    return document(account, explain(account))


def test_people_read_the_phase():
    ranks = [Process(rank) for rank in range(4)]
    train(ranks, 20, {"backward": 0.5})
    shown = found_in(account_of(*ranks))
    assert "slow rank: 3 on n3 (productive, backward)" in render(shown, full=True)
    advice = next(cause["advice"] for cause in shown["causes"] if cause["state"] == "straggler")
    assert "its compute is slow, mostly in backward: check" in advice


def test_run_log_has_the_phase(tmp_path):
    """A hang, a line that is repeated and one whose phases are too long do not count."""
    lines = []
    for rank in range(3):
        now = 1000.0
        for step in range(20):
            own = {"forward": 1.0, "backward": 2.0 + 0.5 * (rank == 2)}
            own["forward"] += 2.0 * (step == 0 and rank == 2) + 200.0 * (step == 7 and rank == 2)
            waits = 0.2 + 0.5 * (rank != 2) + (2.0 * (step == 0) + 200.0 * (step == 7)) * (rank != 2)
            seconds = sum(own.values()) + waits
            now += seconds
            phases = {**own, "communication": waits}
            if step == 11:
                phases["forward"] += 5.0
            line = {"kind": "step", "run": "r", "rank": rank, "attempt": 1, "time": now, "step": step}
            lines += [{**line, "seconds": seconds, "phases": phases}] * (1 + (step == 3))
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    account = replay(str(file))[0].account
    assert because(account) == (2, "productive", "backward")
    times = account.straggler.phases[2, 1]
    assert times.by_phase() == {
        "backward": ns(17 * 2.5),
        "communication": ns(17 * 0.2),
        "forward": ns(17 * 1.0),
        "none": 0,
    }
    assert times.steps == 17


@pytest.mark.parametrize("stages", [(None, None, None), (0, 0, 1)])
def test_peers_without_time_in_own_phases_are_compared_with(tmp_path, stages):
    """Their lines name `communication` alone; that they took no time in `forward` is known."""
    lines = []
    for rank, stage in enumerate(stages):
        attempt = {"kind": "attempt", "run": "r", "rank": rank, "attempt": 1, "time": 1000.0}
        lines.append(attempt | ({} if stage is None else {"stage": stage, "group": f"g{stage}"}))
        for step in range(20):
            phases = {"forward": 0.9, "communication": 0.1} if rank == 2 else {"communication": 0.8}
            line = {
                "kind": "step",
                "run": "r",
                "rank": rank,
                "attempt": 1,
                "time": 1001.0 + step,
                "step": step,
            }
            lines.append({**line, "seconds": 1.0, "phases": phases})
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    straggler = document(replay(str(file))[0].account)["straggler"]
    if stages[0] is None:
        assert (straggler["culprit"], straggler["because_phase"]) == (2, "forward")
    else:
        assert (straggler["culprit_stage"], straggler["stage_because_phase"]) == (1, "forward")
