"""Programs of two ranks, unchanged under `goodput run`: waiting, sharding, and a restart after both were killed."""

from __future__ import annotations

import pytest
from support.installed import need
from support.programs.comparison import EXCHANGE, TOLERANCE_SHARE, differences, restarted
from support.programs.running import run_bare, run_measured

need("torch")
pytestmark = pytest.mark.alone


def place(tmp_path):
    """The folder of a program without goodput."""
    (tmp_path / "bare").mkdir()
    return tmp_path / "bare"


def same_results(first, second) -> bool:
    """Whether every rank and attempt has the same weights and outputs."""
    results = [[(each.weights, each.outputs) for each in trained.measured] for trained in (first, second)]
    return results[0] == results[1]


def closes(account) -> bool:
    return all(sum(rank.states) == account.end_ns - account.start_ns for rank in account.ranks)


def test_slow_rank_is_named(tmp_path):
    """Rank 1 takes 15 ms longer in each forward pass, for which rank 0 waits."""
    trained = run_measured("ranks/ddp_spawn", tmp_path)
    account, measured = trained.account, trained.measured
    assert closes(account) and [rank.kept_steps for rank in account.ranks] == [40, 40]
    for rank in range(2):
        assert (
            differences(trained.states(rank), measured[rank].states(), EXCHANGE, trained.core_wait_ns) == {}
        )
    faster, slower = ([step["forward"] for step in each.steps] for each in measured)
    waited = sum(max(late - early, 0) for early, late in zip(faster[1:], slower[1:], strict=True))
    wall = sum(trained.states(0).values())
    assert trained.states(0)["straggler"] == pytest.approx(
        waited, abs=TOLERANCE_SHARE * wall + trained.core_wait_ns
    )
    trained.assert_leads("straggler", "waiting for rank 1" if trained.core_wait_ns < waited / 2 else "")
    if trained.core_wait_ns < waited / 2:  # Else the other rank is late as often.
        assert trained.document["straggler"]["culprit"] == 1
    assert same_results(trained, run_bare("ranks/ddp_spawn", place(tmp_path)))


def test_killed_ranks_resume(tmp_path):
    """Steps 20 to 24 are repeated, and the unfinished step 25 is lost."""
    trained = run_measured("ranks/resume", tmp_path)
    account, measured = trained.account, trained.measured
    assert closes(account) and trained.document["steps"] == {"kept": 80, "lost": 10}
    (restart,) = trained.document["restarts"]
    assert restart["lost_steps"] == 10 and restart["resume_step"] == 19
    for rank in range(2):
        killed, resumed = measured[2 * rank : 2 * rank + 2]
        expected = restarted(killed, resumed, kept=20)
        assert differences(trained.states(rank), expected, EXCHANGE, trained.core_wait_ns) == {}
    assert same_results(trained, run_bare("ranks/resume", place(tmp_path)))


def test_sharded_ranks_save(tmp_path):
    """The ranks exchange parameters in every pass, and save two distributed checkpoints together."""
    trained = run_measured("ranks/fsdp2", tmp_path)
    account, measured = trained.account, trained.measured
    assert closes(account) and [rank.kept_steps for rank in account.ranks] == [20, 20]
    for rank in range(2):
        assert (
            differences(trained.states(rank), measured[rank].states(), EXCHANGE, trained.core_wait_ns) == {}
        )
        assert sorted(trained.run.attempts[rank, 1].saved) == [9, 19]
    trained.assert_leads("checkpoint", "Save asynchronously")
    assert same_results(trained, run_bare("ranks/fsdp2", place(tmp_path)))


def test_processes_without_ranks_are_counted(tmp_path):
    """Two spawned processes train one model in shared memory; each is near its own stopwatch.

    Their updates race by design, so weights and losses do not repeat and are not compared.
    """
    trained = run_measured("ranks/hogwild", tmp_path)
    assert [rank.kept_steps for rank in trained.account.ranks] == [50, 50]
    for rank in trained.account.ranks:
        assert sum(rank.states) == rank.wall_ns
        number = int(rank.worker.removeprefix("Process-")) - 1
        measured = trained.measured[number]
        assert differences(trained.states(rank.rank), measured.states(), core_wait=measured.core_wait) == {}
    assert trained.printed.count("covers 2 processes without ranks") == 1
