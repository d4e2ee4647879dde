"""Real ranks over gloo that wait for a late rank, for many small messages, or for what nothing hides: the advice tells them apart.

That a slow link is told from these is in test_slow_links.py.
"""

import pytest
from support.frameworks.two_ranks import run_ranks, the_account
from support.installed import need

from goodput.account import document
from goodput.causes import explain

need("torch")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By reason, the account's document."""
    documents = {}
    for reason in ("late", "small", "exposed", "hidden"):
        directory = tmp_path_factory.mktemp(reason)
        assert "goodput:" not in run_ranks(
            "collectives/communication_causes_rank.py", directory, reason, forked="torch"
        )
        account = the_account(directory)
        documents[reason] = document(account, explain(account))
    return documents


def advice(found: dict, state: str) -> str:
    return next((one["advice"] for one in found["causes"] if one["state"] == state), "")


def test_late_rank_is_named_before_anything_else(found):
    assert "waiting for rank 1" in advice(found["late"], "straggler")
    assert "of all waiting is for late ranks" in advice(found["late"], "communication")


def test_small_messages_are_named(found):
    text = advice(found["small"], "communication")
    assert "16 B a call. Such messages are too small for the links" in text


def test_large_message_that_nothing_hides(found):
    text = advice(found["exposed"], "communication")
    assert "8 MB a call. Nothing overlaps it (" in text


def test_message_that_is_hidden_is_not_blamed(found):
    (row,) = [one for one in found["hidden"]["collectives"] if one["operation"] == "all_reduce"]
    assert row["hidden_gpu_seconds_max"] > 5 * row["gpu_seconds"]
    text = advice(found["hidden"], "communication")
    assert "Nothing overlaps it" not in text and "too small" not in text
