"""torch.multiprocessing.spawn: each child is a rank, their parent is not, and the planted cause is named."""

import sys

import pytest
from support.frameworks.two_ranks import (
    SCRIPTS,
    closes,
    environment,
    leading,
    run_command,
    seconds,
    the_account,
    written,
)
from support.servers.servers import free_ports

pytestmark = pytest.mark.alone

STEPS, DELAY_SECONDS = 25, 0.08


@pytest.fixture(scope="module")
def spawned(tmp_path_factory):
    """(account, planted seconds, tolerance, directory) of a run in which rank 1's loader is slow."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    directory = tmp_path_factory.mktemp("spawn")
    command = [sys.executable, str(SCRIPTS / "spawned_ranks.py"), str(directory)]
    command += [str(free_ports(1)[0]), str(DELAY_SECONDS)]
    assert "goodput:" not in run_command(command, environment(directory, None))
    ranks = written(directory, "planted-{}")
    tolerance = 0.05 * ranks[1]["planted"] + sum(rank["core_wait"] for rank in ranks)
    return the_account(directory), ranks[1]["planted"], tolerance, directory


def test_two_ranks_and_no_page_of_the_parent(spawned):
    account, _, _, directory = spawned
    assert [rank.rank for rank in account.ranks] == [0, 1] and account.world_size == 2
    assert len(list((directory / "pages").iterdir())) == 2
    assert account.status == "finished" and closes(account)
    assert [(rank.kept_steps, rank.lost_steps) for rank in account.ranks] == [(STEPS, 0)] * 2


def test_planted_delay_is_loader_and_straggler_time(spawned):
    account, planted, tolerance, _ = spawned
    assert planted >= STEPS * DELAY_SECONDS
    assert seconds(account, 1, "loader") == pytest.approx(planted, abs=tolerance)
    assert seconds(account, 0, "loader") < tolerance
    assert seconds(account, 0, "straggler") == pytest.approx(planted, abs=tolerance)
    assert seconds(account, 1, "straggler") < tolerance


def test_slow_rank_is_named_with_its_cause(spawned):
    account, *_ = spawned
    assert account.straggler.culprit() == (1, "loader")
    assert [leading(account, rank) for rank in (0, 1)] == ["straggler", "loader"]
