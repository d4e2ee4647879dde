"""Accounts of the rank pages on this machine: real processes, one that ended, one that was killed, one in between."""

import subprocess
import sys
import time

import pytest
from support.account.account_history import assert_closes, of_rank

from goodput.account import compute
from goodput.sdk.reports.local_accounts import runs_in

TRAIN = """
import os, signal, sys, time
import goodput

rank, end, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
goodput.start(run="local", rank=rank, world_size=8, directory=folder, flops_per_step=1e9, peak_flops_per_second=1e12)
for step in goodput.steps(range(6), samples=4):
    with goodput.phase("forward"):
        time.sleep(0.002)
    if step == 3:
        goodput.checkpoint(step)
    if step == 5 and end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
if end == "alive":
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def train(tmp_path):
    """Start a rank; returns its process once it ended, or once it waits."""
    started = []

    def start(rank: int, end: str) -> subprocess.Popen:
        command = [sys.executable, "-c", TRAIN, str(rank), end, str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        if end == "alive":
            assert process.stdout.readline() == b"ready\n"
        else:
            process.wait(120)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(120)
        process.stdin.close()
        process.stdout.close()


def local(folder):
    runs, errors = runs_in(str(folder), time.perf_counter_ns())
    accounts = [compute(run, time.time_ns()) for run in runs]
    for account in accounts:
        assert_closes(account)
    return accounts, errors


def test_pages_of_finished_killed_and_running_ranks(train, tmp_path):
    assert train(1, "finished").returncode == 0
    assert train(3, "killed").returncode == -9
    alive = train(4, "alive")
    (account,), errors = local(tmp_path)
    assert errors == []
    # Ranks of other hosts are not expected here, and say nothing about this one.
    assert [rank.rank for rank in account.ranks] == [1, 3, 4]
    assert (account.run, account.status) == ("local", "running")
    assert [rank.kept_steps for rank in account.ranks] == [6, 5, 6]
    assert "down" not in of_rank(account, 2) and of_rank(account, 1)["lost"] >= 0.002
    for i in range(3):
        # What a first step takes longer than the others, as on a busy machine, counts as compiling.
        states = of_rank(account, i)
        assert states["productive"] + states.get("compile", 0.0) >= 5 * 0.002 and states["startup"] > 0
    alive.stdin.close()
    alive.wait(120)

    (account,), _ = local(tmp_path)
    # A rank was killed and none continues: its steps after the checkpoint of step 3 are lost provisionally.
    assert account.status == "failed"
    assert [(rank.kept_steps, rank.lost_steps) for rank in account.ranks] == [(4, 2), (4, 1), (4, 2)]


def test_invalid_page_is_named_and_skipped(train, tmp_path):
    train(0, "finished")
    (page,) = [path for path in tmp_path.iterdir() if path.suffix == ".page"]
    (tmp_path / "junk.page").write_bytes(b"junk" * 1000)
    (tmp_path / "short.page").write_bytes(page.read_bytes()[:5000])
    (tmp_path / "notes.txt").write_text("no page")
    (account,), errors = local(tmp_path)
    assert account.status == "finished" and account.ranks[0].kept_steps == 6
    assert len(errors) == 2 and "junk.page" in errors[0] and "short.page" in errors[1]


def test_empty_folder_has_no_runs(tmp_path):
    assert local(tmp_path) == ([], [])
