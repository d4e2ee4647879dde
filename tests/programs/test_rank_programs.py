"""Programs of two ranks, unchanged under `goodput run`: waiting, sharding, and a restart after both were killed."""

from __future__ import annotations

import pytest
from support.programs.comparison import EXCHANGE, TOLERANCE_SHARE, differences, restarted
from support.programs.running import Bare, run_bare, run_measured

pytest.importorskip("torch")
pytestmark = pytest.mark.alone


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
        assert differences(trained.states(rank), measured[rank].states(), EXCHANGE) == {}
    faster, slower = ([step["forward"] for step in each.steps] for each in measured)
    waited = sum(max(late - early, 0) for early, late in zip(faster[1:], slower[1:], strict=True))
    wall = sum(trained.states(0).values())
    assert trained.states(0)["straggler"] == pytest.approx(waited, abs=TOLERANCE_SHARE * wall)
    assert trained.document["straggler"]["culprit"] == 1
    leading = trained.leading()
    assert leading["state"] == "straggler" and "waiting for rank 1" in leading["advice"]
    (tmp_path / "bare").mkdir()
    bare = Bare(tmp_path)
    assert same_results(trained, bare.run("ranks/ddp_spawn", tmp_path / "bare"))
    bare.close()


def test_killed_ranks_resume(tmp_path):
    """Steps 20 to 24 are repeated, and the unfinished step 25 is lost."""
    (tmp_path / "bare").mkdir()
    trained = run_measured("ranks/resume", tmp_path)
    account, measured = trained.account, trained.measured
    assert closes(account) and trained.document["steps"] == {"kept": 80, "lost": 10}
    (restart,) = trained.document["restarts"]
    assert restart["lost_steps"] == 10 and restart["resume_step"] == 19
    for rank in range(2):
        killed, resumed = measured[2 * rank : 2 * rank + 2]
        expected = restarted(killed, resumed, kept=20)
        assert differences(trained.states(rank), expected, EXCHANGE) == {}
    assert same_results(trained, run_bare("ranks/resume", tmp_path / "bare"))
