"""Trainers and generators of one run: an account for each role, and no verdict against rollouts."""

import json

import pytest
from support.account.account_history import Process, account_of, assert_closes, ns, of_rank

from goodput.account import document
from goodput.account.hang import RankStatus, verdict
from goodput.account.states import INDEX
from goodput.account.text import render
from goodput.runlog import replay


def ranks_of_two_roles(**trainer) -> list[Process]:
    """Two trainers that wait for each other, and a generator; 11 s each."""
    trainers = [Process(rank, world_size=3, **trainer).between(none=1, rollout=0) for rank in (0, 1)]
    for _ in range(5):
        trainers[0].step(forward=2, communication=0)
        trainers[1].step(forward=1, communication=1)
    generator = Process(2, role="generator", world_size=3).between(none=3, rollout=8)
    return [one.finished() for one in (*trainers, generator)]


@pytest.mark.parametrize("trainer", [{"role": "trainer"}, {"group": "trainer"}, {}])
def test_roles_close_and_are_not_compared(trainer):
    """The slow generator makes no step; the trainers wait in collectives for each other alone."""
    account = account_of(*ranks_of_two_roles(**trainer))
    assert_closes(account)
    (first, second, third) = account.ranks
    assert third.states[INDEX["rollout"]] == 8 * 10**9 and third.states[INDEX["startup"]] == 3 * 10**9
    assert first.states[INDEX["productive"]] == 10 * 10**9
    assert second.states[INDEX["straggler"]] == 5 * 10**9
    assert sum(account.gpu_ns()) == 3 * 11 * 10**9


def test_roles_sum_to_the_run():
    """Goodput of the run 15 of 33, of the trainers 15 of 22; the generator has none, and says why."""
    found = document(account_of(*ranks_of_two_roles()))
    trainer, generator = found["roles"]
    assert (trainer["role"], trainer["ranks"], trainer["gpu_seconds"]) == ("trainer", 2, 22)
    assert (generator["role"], generator["goodput"], generator["states"]["rollout"]) == ("generator", 0, 8)
    assert trainer["goodput"] == 15 / 22 and found["factors"]["goodput"] == 15 / 33
    for role in found["roles"]:
        assert sum(role["states"].values()) == role["gpu_seconds"]
    for state, value in found["states"].items():
        assert value == sum(role["states"][state] for role in found["roles"])
    assert [rank["role"] for rank in found["ranks"]] == ["trainer", "trainer", "generator"]
    text = " ".join(render(found, full=True).split())
    assert "role trainer: 2 ranks, 22.0 GPU-seconds, goodput 68.2 %: productive 68.2 %, straggler" in text
    assert "role generator: 1 rank, 11.0 GPU-seconds, makes no steps: rollout 72.7 %, startup 27.3 %" in text


def test_one_role_has_no_account_of_its_own():
    ranks = [Process(rank, world_size=3).steps(5, forward=1).finished() for rank in (0, 1)]
    found = document(account_of(*ranks))
    assert found["roles"] == [] and {rank["role"] for rank in found["ranks"]} == {""}


def test_rollouts_without_steps_are_no_stall():
    """Two hours of rollouts of five minutes; then one that has lasted for an hour, of which 30 min are excused."""
    one = Process()
    for _ in range(24):
        one.between(rollout=300)
    account = account_of(one.finished())
    assert of_rank(account) == {"rollout": 7200}
    one.ended, one.phase = "", "rollout"
    account = account_of(one, now=7200 + 3600)
    assert of_rank(account) == {"rollout": 7200 + 1800, "stall": 1800}


def test_log_of_rollouts_without_steps(tmp_path):
    lines = [{"kind": "attempt", "time": 0, "rank": 0, "role": "generator"}]
    for number in range(24):
        lines.append({"kind": "phase", "time": 300 * (number + 1), "phase": "rollout", "seconds": 300})
    log = tmp_path / "run.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"kind": "end", "time": 7200}]))
    (one,) = replay(str(log))
    assert of_rank(one.account) == {"rollout": 7200} and one.hang is None


@pytest.mark.parametrize(("since_seconds", "hangs"), [(60, False), (3600, True)])
def test_generator_hangs_in_one_rollout_only(since_seconds, hangs):
    """It has made rollouts for two hours and no step; the running one counts."""
    now = ns(7200)
    one = RankStatus(
        *(0, "n0", 1, "rollout", "rollout"),
        phase_since_ns=now - ns(since_seconds),
        seen_ns=now,
        received_ns=now,
        last_progress_ns=0,
        step=None,
        planned={"rollout": now - ns(since_seconds)},
        generates=True,
    )
    assert bool(verdict([one], now, ns(60))) == hangs
