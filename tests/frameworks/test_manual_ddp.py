"""DistributedDataParallel in two processes with phases by hand: the account closes and finds a planted delay."""

import pytest
from support.frameworks.two_ranks import closes, run_ranks, seconds, the_account, written

pytestmark = pytest.mark.alone

DELAY_SECONDS = 0.03


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(account, planted seconds, tolerance) of a run in which rank 1's loader is slow."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    directory = tmp_path_factory.mktemp("ddp")
    run_ranks("manual_ddp_rank.py", directory, str(DELAY_SECONDS))
    ranks = written(directory, "planted-{}")
    planted = ranks[1]["planted"]
    return the_account(directory), planted, 0.05 * planted + sum(rank["core_wait"] for rank in ranks)


def test_account_closes(trained):
    account, _, _ = trained
    assert account.status == "finished" and closes(account)
    assert [(rank.kept_steps, rank.lost_steps) for rank in account.ranks] == [(60, 0)] * 2


def test_planted_delay_is_loader_time_of_its_rank(trained):
    account, planted, tolerance = trained
    assert seconds(account, 1, "loader") == pytest.approx(planted, abs=tolerance)
    assert seconds(account, 0, "loader") < tolerance


def test_planted_delay_is_straggler_time_of_the_other(trained):
    account, planted, tolerance = trained
    assert seconds(account, 0, "straggler") == pytest.approx(planted, abs=tolerance)
    assert seconds(account, 1, "straggler") < tolerance


def test_slow_rank_is_named_with_its_cause(trained):
    account, _, _ = trained
    assert account.straggler.culprit() == (1, "loader")
    assert account.straggler.slowdown() > 1.3
