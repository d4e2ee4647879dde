"""FSDP2 with torch.distributed.checkpoint: saves in place, by a thread and by a process, and a resumed attempt."""

import time

import pytest
from support.frameworks.two_ranks import closes, leading, run_ranks, seconds, the_account, written
from support.installed import need

from goodput.sdk.reports.local_accounts import runs_in

pytestmark = pytest.mark.alone

# As in distributed_checkpoint_rank.py: steps of the two attempts, and those after which it saves.
STEPS, STEPS_AFTER = 21, 5
SAVED = (9, 13, 17)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(account, events by rank and attempt, results of the ranks) of a run of two attempts."""
    need("torch")
    directory = tmp_path_factory.mktemp("sharded")
    for attempt, forked in enumerate(("", "torch")):  # goodput is imported before PyTorch, then after it
        errors = run_ranks(
            "distributed_checkpoint_rank.py",
            directory,
            forked=forked,
            TORCHELASTIC_RESTART_COUNT=str(attempt),
        )
        assert "goodput:" not in errors
    (run,), _ = runs_in(str(directory / "pages"), time.perf_counter_ns())
    events = {
        key: [(e.kind, e.step) for e in attempt.events.values()] for key, attempt in run.attempts.items()
    }
    return the_account(directory), events, [written(directory, f"sharded-{{}}-{n}.json") for n in (1, 2)]


def test_each_rank_begins_and_commits_each_save_once(trained):
    _, events, _ = trained
    wanted = [(f"checkpoint_{what}", step) for step in SAVED for what in ("begun", "committed")]
    assert events[0, 1] == events[1, 1] == wanted


def test_state_dict_is_called_once_per_save(trained):
    _, _, (first, second) = trained
    calls = [rank["state_dict_calls"] for rank in (*first, *second)]
    assert calls == [3, 3, 1, 1]


def test_second_attempt_resumes_from_the_loaded_step(trained):
    account, events, _ = trained
    assert events[0, 2] == events[1, 2] == [("resumed", SAVED[-1])]
    lost = STEPS - 1 - SAVED[-1]
    assert [(rank.kept_steps, rank.lost_steps) for rank in account.ranks] == [
        (STEPS - lost + STEPS_AFTER, lost)
    ] * 2
    assert account.restarts[0].resume_step == SAVED[-1] and closes(account)
    # The process that writes a checkpoint is not a rank: four pages, two ranks.
    assert sorted(events) == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_checkpoint_and_restore_waits_have_their_states(trained):
    account, _, _ = trained
    for rank in (0, 1):
        # The script waits for a process that imports PyTorch, which alone takes a second.
        assert seconds(account, rank, "checkpoint") > 0.5
        assert seconds(account, rank, "restore") > 0


def test_late_forward_is_straggler_time_of_the_other(trained):
    account, _, (first, _) = trained
    planted = first[1]["planted_seconds"]
    core_wait = sum(rank["core_wait"] for rank in first)
    tolerance = 0.05 * planted + core_wait
    assert planted >= 0.15 * (SAVED[-1] + 1)
    assert seconds(account, 0, "straggler") == pytest.approx(planted, abs=tolerance)
    assert seconds(account, 1, "straggler") < tolerance
    assert account.straggler.culprit() == (1, "productive")
    # A rank that gets no core in a collective communicates for as long.
    missing = seconds(account, 0, leading(account, 0)) - seconds(account, 0, "straggler")
    assert missing <= core_wait
