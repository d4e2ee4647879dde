"""Accounts of pages whose rings begin at different steps: what they say does not depend on when the pages are read."""

import json
import subprocess
import sys
import time
from random import Random

import pytest
from support.rank_page.page_maker import Rank

from goodput.progress.local_runs import LocalRuns

MS = 1_000_000
# Own time of each rank in a step of 12 ms: rank 2 waits 4 ms longer for its loader, and all wait for it.
LOADER_MS = (1, 1, 5)
FORWARD_MS = 6


def make_step(rank: Rank, number: int) -> None:
    loader = LOADER_MS[number]
    rank.step(loader=loader * MS, forward=FORWARD_MS * MS, communication=(12 - FORWARD_MS - loader) * MS)


@pytest.fixture
def ranks(tmp_path):
    """Three ranks of one run, whose pages begin a minute ago."""
    before_ns = 60 * 10**9
    began = {"start_unix_ns": time.time_ns() - before_ns, "start_mono_ns": time.perf_counter_ns() - before_ns}
    found = [Rank(tmp_path, rank=rank, world_size=3, **began) for rank in range(3)]
    yield found
    for rank in found:
        rank.writer.close()


def reported_text(folder, *options: str) -> str:
    command = [sys.executable, "-m", "goodput", "report", "--directory", str(folder), *options]
    return subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout


def reported(folder) -> dict:
    return json.loads(reported_text(folder, "--json"))


def share_of(account: dict, state: str) -> float:
    steps = sum(account["states"][name] for name in ("loader", "productive", "communication", "straggler"))
    return account["states"][state] / steps


def test_straggler_share_is_the_same_at_any_reading(ranks, tmp_path):
    """Per step of 36 rank-ms: 8 ms of waiting for rank 2, and 3 ms that all ranks share."""
    done = [0, 0, 0]
    for upto in ((1000, 1001, 999), (1030, 1031, 1028), (1300, 1301, 1299), (2500, 2500, 2502)):
        for number, rank in enumerate(ranks):
            for _ in range(upto[number] - done[number]):
                make_step(rank, number)
        done = upto
        account = reported(tmp_path)
        # Steps that not all ranks have completed yet cannot be compared.
        assert share_of(account, "straggler") == pytest.approx(8 / 36, abs=0.002), upto
        assert share_of(account, "communication") == pytest.approx(3 / 36, abs=0.002), upto
        straggler = account["straggler"]
        assert (straggler["culprit"], straggler["because"]) == (2, "loader"), upto
        assert account["coverage"]["compared"] == pytest.approx(1.0, abs=0.005), upto


def test_twenty_readings_of_a_long_run_agree(ranks, tmp_path):
    """The rings begin anywhere after 5 000 steps; of all steps the share is 8 / 36 too."""
    random, shares, culprits, done = Random(7), [], set(), [0, 0, 0]
    for reading in range(20):
        upto = 5000 + 37 * reading
        for number, rank in enumerate(ranks):
            for _ in range(upto + random.randrange(3) - done[number]):
                make_step(rank, number)
                done[number] += 1
        (found,) = LocalRuns([str(tmp_path)], 60.0).read()
        shares.append(share_of(found.document, "straggler"))
        straggler = found.document["straggler"]
        culprits.add((straggler["culprit"], straggler["because"]))
    assert shares == pytest.approx([8 / 36] * 20, abs=0.005)
    assert culprits == {(2, "loader")}


def test_steps_that_cannot_be_compared_are_said(ranks, tmp_path):
    """Rank 2 has ended after 1 200 steps; of the others' steps before 1 476 only sums are known."""
    for number, (rank, steps) in enumerate(zip(ranks, (2500, 2500, 1200), strict=True)):
        for _ in range(steps):
            make_step(rank, number)
    # While it may still make its next step, those of the others after that are not compared.
    assert reported(tmp_path)["coverage"]["compared"] == 0
    ranks[2].recorder.end(ranks[2].recorder.last_ns, "finished")
    account = reported(tmp_path)
    # Ranks 0 and 1 are compared with each other, rank 2 with none.
    assert account["coverage"]["compared"] == pytest.approx(5000 / 6200, abs=0.001)
    assert share_of(account, "straggler") == 0 and account["straggler"]["culprit"] is None
    text = reported_text(tmp_path)
    assert "80.6 % of the time in steps was compared between ranks" in " ".join(text.split())
    (cause,) = (one for one in account["causes"] if one["state"] == "communication")
    assert cause["advice"].startswith("Only 80.6 % of the time in steps could be compared between ranks")


def test_lost_steps_are_not_summed(ranks, tmp_path):
    """A restart at step 999 of an attempt with 2 000 steps: those after it are lost, also in the rings' sums."""
    for number, rank in enumerate(ranks):
        for _ in range(1500 + number):
            make_step(rank, number)
        rank.recorder.end(rank.recorder.last_ns, "failed")
    began = {
        "start_unix_ns": time.time_ns() - 30 * 10**9,
        "start_mono_ns": time.perf_counter_ns() - 30 * 10**9,
    }
    later = [Rank(tmp_path, rank=rank, world_size=3, attempt=2, **began) for rank in range(3)]
    for number, rank in enumerate(later):
        rank.recorder.event("resumed", rank.recorder.last_ns, 999)
        rank.recorder.step_next = 1000
        for _ in range(100):
            make_step(rank, number)
    account = reported(tmp_path)
    for rank in later:
        rank.writer.close()
    assert account["steps"] == {"kept": 3 * 1100, "lost": 500 + 501 + 502}
    assert share_of(account, "straggler") == pytest.approx(8 / 36, abs=0.002)
