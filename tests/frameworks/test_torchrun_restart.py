"""torchrun with a rank that kills itself: after the restart the account shows resumed, lost and kept steps."""

import math
import os
import sys

import pytest
from support.frameworks.two_ranks import SCRIPTS, closes, environment, run_command, seconds, the_account
from support.installed import need
from support.servers.servers import REPOSITORY, free_ports

pytestmark = pytest.mark.alone

STEPS, SAVED, KILLED_BEFORE = 30, 15, 21
# gloo sometimes aborts a rank of the second attempt as it connects, also without goodput.
TRIES, GLOO_ABORTS = 3, "terminate called without an active exception"


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """(account, directory); the launcher, too, finds goodput.auto by PYTHONPATH."""
    need("torch")
    for _ in range(TRIES):
        directory = tmp_path_factory.mktemp("torchrun")
        try:
            errors = launch(directory)
            break
        except AssertionError as error:
            if GLOO_ABORTS not in str(error):
                raise
    else:
        pytest.fail(f"gloo has aborted {TRIES} times")
    assert "goodput:" not in errors
    return the_account(directory), directory


def launch(directory) -> str:
    """The standard error of torchrun and its ranks; they must exit with 0."""
    bootstrap = REPOSITORY / "src" / "goodput" / "bootstrap"
    environ = environment(directory, "torchrun", GOODPUT_AUTO="1", PYTHONPATH=str(bootstrap))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    # Not the static rendezvous, with which ranks of the second attempt can find the first one's addresses.
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "x"]
    command += ["--local-addr", "127.0.0.1", "--monitor-interval", "0.1"]
    return run_command([*command, str(SCRIPTS / "torchrun_rank.py"), str(directory)], environ)


def test_launcher_has_no_page(restarted):
    names = sorted(os.listdir(restarted[1] / "pages"))
    assert names == [f"torchrun.{rank}.{attempt}.page" for rank in (0, 1) for attempt in (1, 2)]


def test_resume_step_and_lost_steps_are_found(restarted):
    account, _ = restarted
    (restart,) = account.restarts
    assert (restart.attempt, restart.resume_step) == (2, SAVED)
    assert restart.lost_steps == 2 * (KILLED_BEFORE - SAVED - 1)
    assert [(rank.kept_steps, rank.lost_steps) for rank in account.ranks] == [
        (STEPS, KILLED_BEFORE - SAVED - 1)
    ] * 2


def test_account_closes_and_shows_the_restarts_cost(restarted):
    account, _ = restarted
    assert account.status == "finished" and closes(account)
    for rank in (0, 1):
        assert seconds(account, rank, "restore") > 0 and seconds(account, rank, "startup") > 0
        assert seconds(account, rank, "lost") > 0 and not math.isclose(seconds(account, rank, "down"), 0)
    assert seconds(account, 0, "checkpoint") > 0 == seconds(account, 1, "checkpoint")


def test_both_ranks_have_the_same_weights(restarted):
    weights = [(restarted[1] / f"weights-{rank}").read_text() for rank in (0, 1)]
    assert weights[0] == weights[1] and weights[0].startswith("[[")
