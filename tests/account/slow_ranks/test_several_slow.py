"""Several ranks that are slow by different degrees, as the account's `onsets` tell them."""

from __future__ import annotations

import random

import pytest
from support.account.account_history import Process
from support.account.entries import straggler_document

USUAL, BETWEEN = 1.0, 1.04


def onsets(
    factors: list[float], steps: int, since: int, later: dict[int, float], noise: float, where, capsys
):
    """(rank, first step, from the start) of each stretch of ranks that work `factors` seconds, and some `later` ones."""
    rng = random.Random(len(factors))
    ranks = [Process(rank) for rank in range(len(factors))]
    for step in range(steps):
        own = [later.get(rank, one) if step >= since else one for rank, one in enumerate(factors)]
        own = [rng.gauss(1, noise) * one for one in own]
        for one, seconds in zip(ranks, own, strict=True):
            one.step(forward=seconds, communication=0.1 + max(own) - seconds)
    found = straggler_document([one.finished() for one in ranks], where, capsys)
    return [(one["rank"], one["first_step"], one["from_start"]) for one in found["onsets"]]


@pytest.mark.parametrize(("slow_steps", "found"), [(19, 0), (20, 4)])
def test_four_ranks_beside_two_by_hand(slow_steps, found, tmp_path, capsys):
    """Of 16 ranks two are slow from the start, and four are 8 to 21 % slower in the last steps; three are in between.

    Six of sixteen stand out: the chance is 3/8, a slow rank's 27/32, so each step adds ln 2.25 and the twentieth reaches
    ln 10^7. The lower median is one of those in between, and the fastest six are alike.
    """
    factors = [USUAL] * 7 + [BETWEEN] * 3 + [1.3, 1.5] + [USUAL] * 4
    later = {12: 1.08, 13: 1.12, 14: 1.16, 15: 1.21}
    since = 100
    begun = onsets(factors, since + slow_steps, since, later, 0.0, tmp_path, capsys)
    assert begun[:2] == [(10, 1, True), (11, 1, True)]
    assert begun[2:] == [(rank, since, False) for rank in later][:found]


@pytest.mark.parametrize("ranks", [8, 12])
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_slow_from_the_start_are_found_early(ranks, noise, tmp_path, capsys):
    """One rank is in between, which in a group of eight makes it the lower median; forty steps are enough for the others."""
    factors = [BETWEEN, 1.12, 1.25, 1.4, 1.6] + [USUAL] * (ranks - 5)
    begun = onsets(factors, 40, 0, {}, noise, tmp_path, capsys)
    assert [(rank, start) for rank, _, start in begun] == [(1, True), (2, True), (3, True), (4, True)]
    assert all(first <= 3 for _, first, _ in begun)


@pytest.mark.parametrize("ranks", [5, 8, 16])
def test_equal_ranks_with_lasting_noise_are_not_slow(ranks, tmp_path, capsys):
    """Each rank's time depends on its last one, by a half; the spread is 5 %."""
    rng, now = random.Random(ranks), [0.0] * ranks
    processes = [Process(rank) for rank in range(ranks)]
    for _ in range(300):
        now = [0.5 * x + rng.gauss(0, 0.05 * 0.75**0.5) for x in now]
        for one, x in zip(processes, now, strict=True):
            one.step(forward=1 + x, communication=0.1 + max(now) - x)
    found = straggler_document([one.finished() for one in processes], tmp_path, capsys)
    assert (found["onsets"], found["culprit"]) == ([], None)
