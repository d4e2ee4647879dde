"""DistributedDataParallel with a slow loader on rank 1: its cause, and the straggler time of rank 0.

Phases are set by hand in processes of a launcher, or by goodput.auto in processes of torch.multiprocessing.spawn.
"""

import sys

import pytest
from support.frameworks import two_ranks
from support.frameworks.two_ranks import seconds
from support.installed import need
from support.servers.servers import free_ports

pytestmark = pytest.mark.alone

# Steps, and seconds of delay in each.
RUNS = {"by hand": (60, 0.03), "spawned": (25, 0.08)}


@pytest.fixture(scope="module", params=RUNS)
def trained(request, tmp_path_factory):
    """(account, planted seconds, tolerance, steps) of a run."""
    need("torch")
    directory = tmp_path_factory.mktemp("ddp")
    steps, delay_seconds = RUNS[request.param]
    if request.param == "by hand":
        two_ranks.run_ranks("loaders/manual_ddp_rank.py", directory, str(delay_seconds), forked="torch")
    else:
        command = [sys.executable, str(two_ranks.SCRIPTS / "loaders/spawned_ranks.py"), str(directory)]
        command += [str(free_ports(1)[0]), str(delay_seconds)]
        errors = two_ranks.run_command(command, two_ranks.environment(directory, None))
        assert "goodput:" not in errors
    ranks = two_ranks.written(directory, "planted-{}")
    planted = ranks[1]["planted"]
    assert planted >= steps * delay_seconds
    # The spawning parent has no page.
    assert len(list((directory / "pages").iterdir())) == 2
    tolerance = 0.05 * planted + sum(rank["core_wait"] for rank in ranks)
    return two_ranks.the_account(directory), planted, tolerance, steps


def test_account_closes(trained):
    account, _, _, steps = trained
    assert [rank.rank for rank in account.ranks] == [0, 1] and account.world_size == 2
    assert account.status == "finished" and two_ranks.closes(account)
    assert [(rank.kept_steps, rank.lost_steps) for rank in account.ranks] == [(steps, 0)] * 2


def test_planted_delay_is_loader_time_of_its_rank(trained):
    account, planted, tolerance, _ = trained
    assert seconds(account, 1, "loader") == pytest.approx(planted, abs=tolerance)
    assert seconds(account, 0, "loader") < tolerance


def test_planted_delay_is_straggler_time_of_the_other(trained):
    account, planted, tolerance, _ = trained
    assert seconds(account, 0, "straggler") == pytest.approx(planted, abs=tolerance)
    assert seconds(account, 1, "straggler") < tolerance


def test_slow_rank_is_named_with_its_cause(trained):
    account, *_ = trained
    assert account.straggler.culprit() == (1, "loader")
    assert account.straggler.slowdown() > 1.3
    assert [two_ranks.leading(account, rank) for rank in (0, 1)] == ["straggler", "loader"]
