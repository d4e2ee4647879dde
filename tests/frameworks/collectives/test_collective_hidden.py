"""How much of real collectives over gloo was hidden behind other work, where that is known by construction."""

import pytest
from support.frameworks.two_ranks import run_ranks, written

pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hidden")
    errors = run_ranks("collectives/collective_hidden_rank.py", directory, forked="torch")
    assert "goodput:" not in errors
    return written(directory, "hidden-{}.json")


def row(rank: dict, group: str) -> dict:
    (found,) = (one for one in rank["rows"] if (one["group"], one["operation"]) == (group, "all_reduce"))
    return found


def test_call_that_is_waited_for_was_hidden_until_then(ranks):
    """Rank 0 sleeps 30 ms while a call is under way and then waits some 220 ms for rank 1: the call lasted until the wait was over."""
    on_time, steps = row(ranks[0], "hand"), ranks[0]["steps"]
    assert on_time["hidden_ns"] == on_time["hidden_max_ns"] >= steps * ranks[0]["sleep_ns"]
    assert on_time["exposed_ns"] > 0.5 * steps * (ranks[0]["late_ns"] - ranks[0]["sleep_ns"])


def test_call_of_the_late_rank_was_complete_before_it_waited(ranks):
    """It sleeps 30 ms too, but its call had nobody to wait for: unknown how much of that it took."""
    late, planted = row(ranks[1], "hand"), ranks[1]["steps"] * ranks[1]["sleep_ns"]
    assert late["hidden_max_ns"] >= planted
    assert late["hidden_ns"] < late["hidden_max_ns"], "equal only if each wait has taken time"


def test_buckets_are_hidden_by_the_rest_of_the_backward_pass(ranks):
    """The first bucket is under way for 30 ms at most; in the first step all are reduced at the end."""
    for rank in ranks:
        assert row(rank, "default_pg")["hidden_max_ns"] >= (rank["steps"] - 1) * rank["sleep_ns"]
