"""Sampled stacks in the account: the sentence of the advice, the document, and which attempts count."""

from __future__ import annotations

from support.account.account_history import Process, account_of

from goodput.account import document
from goodput.account.sampled_stacks import sampled_ranks, where
from goodput.causes import explain
from goodput.defaults import ESTIMATED_LOADER
from goodput.wire.sampled_stacks import SampledStacks

BATCH, OTHER = "data.py:next_batch, line 41", "train.py:<module>, line 9"
SAMPLED = SampledStacks({BATCH: 46, "data.py:next_batch, line 40": 2, OTHER: 2}, 50, "")
REFUSED = SampledStacks({}, 0, "py-spy: no")


def account_with(*stacks: tuple[int, SampledStacks], **phases: float):
    account = account_of(*(Process(rank).steps(8, **phases, forward=1) for rank in (0, 1)), now=30)
    account.stacks = list(stacks)
    return account


def test_advice_names_functions_with_shares():
    account = account_with((0, SAMPLED), (1, SAMPLED), none=0.5)
    sentence = " Of 100 samples of stacks outside phases: 96 % in data.py:next_batch, line 41."
    assert where(account) == sentence
    (cause,) = [one for one in explain(account) if one["state"] == "unattributed"]
    assert cause["advice"].endswith(sentence)


def test_advice_says_why_nothing_was_sampled():
    account = account_with((0, REFUSED))
    assert where(account) == " Its stacks were not sampled (py-spy: no)."
    assert where(account_with()) == ""
    assert where(account_with((0, REFUSED), (1, SAMPLED))).startswith(" Of 50 samples")
    assert where(account_with((0, SAMPLED), (1, REFUSED)), rank=1) == where(account)


def test_document_has_samples_by_rank():
    found = document(account_with((0, SAMPLED), (1, REFUSED)))["stack_samples"]
    assert found["samples"] == 50 and found["reason"] is None
    assert found["places"][0] == {"place": BATCH, "samples": 46, "share": 0.92}
    first, second = found["ranks"]
    assert (first["rank"], first["samples"], len(first["places"]), first["reason"]) == (0, 50, 3, None)
    assert (second["rank"], second["samples"], second["places"], second["reason"]) == (1, 0, [], "py-spy: no")
    assert document(account_with())["stack_samples"] is None


def test_newest_attempt_with_samples_counts():
    attempts = [Process(0, number, start=10 * number).attempt() for number in (1, 2, 3)]
    attempts[0].stacks, attempts[1].stacks = REFUSED, SAMPLED
    assert sampled_ranks(attempts) == [(0, SAMPLED)]


def test_estimated_loader_of_one_rank_names_its_lines():
    """Only the rank that waits is described, not the other's samples."""
    slow = Process(0, user={ESTIMATED_LOADER: "loader"}).steps(8, **{ESTIMATED_LOADER: 0.5}, forward=1)
    fast = Process(1, user={ESTIMATED_LOADER: "loader"}).steps(8, **{ESTIMATED_LOADER: 0.1}, forward=1)
    account = account_of(slow, fast, now=30)
    account.stacks = [(0, SAMPLED), (1, SampledStacks({OTHER: 10}, 10, ""))]
    (cause,) = [one for one in explain(account) if one["state"] == "loader"]
    assert cause["advice"].startswith("Rank 0 on n0 waits")
    assert cause["advice"].endswith(
        "Of 50 samples of stacks outside phases: 96 % in data.py:next_batch, line 41."
    )
