"""Collectives that are completed by the future of their Work: what of it is recorded."""

import pytest
from support.frameworks.two_ranks import run_ranks, written
from support.installed import need

need("torch")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("futures")
    errors = run_ranks("collectives/collective_futures_rank.py", directory, forked="torch")
    assert "goodput:" not in errors
    return written(directory, "futures-{}.json")


@pytest.mark.parametrize("way", ["waited", "waited_after_then", "raising", "work_waited"])
def test_wait_for_a_future_ends_the_record_and_is_communication(ranks, way):
    for rank in ranks:
        assert rank[way]["left"] == [True] and "future" not in rank[way]["flags"]
    # The other rank comes 0.25 s later.
    assert ranks[0][way]["communication"] > 0.2
    assert ranks[1][way]["communication"] < ranks[0][way]["communication"]


@pytest.mark.parametrize("way", ["polled", "future_polled"])
def test_poll_ends_the_record_without_a_wait(ranks, way):
    for rank in ranks:
        assert rank[way]["left"] == [True]
    assert ranks[0][way]["communication"] < 0.2


@pytest.mark.parametrize("way, calls", [("called_back", 1), ("collected", 2)])
def test_completion_that_is_not_seen_is_flagged(ranks, way, calls):
    for rank in ranks:
        assert rank[way]["left"] == [False] * calls and rank[way]["flags"] == ["future"]


def test_futures_of_other_things_wait_for_no_record(ranks):
    for rank in ranks:
        assert rank["other_future"]["left"] == [True] * 20 and rank["other_future"]["flags"] == []


def test_calls_of_a_hooks_callbacks_have_their_exit(ranks):
    """PowerSGD reduces in callbacks of futures, and waits there for the future of a further one."""
    for rank in ranks:
        hooked = rank["hooked"]
        assert len(hooked["left"]) > 8 and all(hooked["left"]) and "future" not in hooked["flags"]
