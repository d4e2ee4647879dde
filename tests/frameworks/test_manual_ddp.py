"""A real PyTorch model in two processes with DistributedDataParallel: the account closes and finds what was planted."""

import os
import socket
import subprocess
import sys
import time

import pytest
from support.paths import SUPPORT

from goodput.account import compute
from goodput.account.states import INDEX
from goodput.sdk.reports.local_accounts import runs_in

pytestmark = pytest.mark.alone

DELAY_SECONDS = 0.03


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(account, planted seconds) of a run in which rank 1's loader is slow."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    directory = tmp_path_factory.mktemp("pages")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        **os.environ,
        "GOODPUT_DIR": str(directory),
        "GOODPUT_RUN": "ddp",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    script = str(SUPPORT / "frameworks" / "scripts" / "manual_ddp_rank.py")
    ranks = [
        subprocess.Popen([sys.executable, script, str(DELAY_SECONDS)], env={**environ, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        assert [rank.wait(120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    runs, errors = runs_in(str(directory), time.perf_counter_ns())
    assert errors == [] and [run.name for run in runs] == ["ddp"]
    return compute(runs[0], time.time_ns()), float((directory / "planted-1").read_text())


def seconds(account, rank: int, state: str) -> float:
    return account.ranks[rank].states[INDEX[state]] / 1e9


def test_the_account_closes(trained):
    account, _ = trained
    assert account.status == "finished"
    for rank in account.ranks:
        assert sum(rank.states) == account.end_ns - account.start_ns
        assert (rank.kept_steps, rank.lost_steps) == (60, 0)


def test_the_planted_delay_is_the_loaders_on_its_rank(trained):
    account, planted = trained
    assert seconds(account, 1, "loader") == pytest.approx(planted, rel=0.05)
    assert seconds(account, 0, "loader") < 0.05 * planted


def test_the_planted_delay_is_straggler_time_on_the_other(trained):
    account, planted = trained
    assert seconds(account, 0, "straggler") == pytest.approx(planted, rel=0.05)
    assert seconds(account, 1, "straggler") < 0.05 * planted


def test_the_slow_rank_is_named_with_its_cause(trained):
    account, _ = trained
    assert account.straggler.culprit() == (1, "loader")
    assert account.straggler.slowdown() > 1.3
