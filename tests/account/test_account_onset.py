"""When a rank became slow: by hand, against a direct computation of the formula, and the rate of false alarms."""

from __future__ import annotations

import random
from math import log

import pytest
from support.account.account_history import Process, run_of

from goodput.account import compute, document
from goodput.account.onset import FALSE_ALARM_STEPS, Onset, Stretch, hits


def test_hits_of_a_step_by_hand():
    # Median 10: over 10.5 and the largest.
    assert hits([10, 10, 12, 10]) == ([False, False, True, False], 0.25)
    assert hits([10, 10, 10.4, 10]) == ([False] * 4, 0.25), "largest, but not by 5 %"
    assert hits([10, 12, 12, 10]) == ([False] * 4, 0.25), "of two equal ranks none stands out"
    # Two ranks: the median is the mean of both, 11; 12 is over 11.55.
    assert hits([10, 12]) == ([False, True], 0.5)
    # Of sixteen the two largest may be slow.
    assert hits([10] * 14 + [12, 13]) == ([False] * 14 + [True, True], 0.125)
    assert hits([0, 0]) == ([False, False], 0.5)


def test_eleventh_hit_of_eight_ranks_alarms():
    onset = Onset()
    for step in range(1000):
        onset.note(step, False, 1 / 8)
    seen = []
    for step in range(1000, 1020):
        onset.note(step, True, 1 / 8)
        seen.append(onset.slow)
    # ln(0.5625 / 0.125) = 1.504 a hit, the alarm at ln 10^7 = 16.12.
    assert seen.index(True) == 10
    assert onset.stretches == [Stretch(1000, None)]


def test_stretch_ends_when_the_rank_recovers():
    onset = Onset()
    for step in range(300):
        onset.note(step, 100 <= step < 200, 1 / 8)
    assert onset.stretches == [Stretch(100, 199)] and not onset.slow


def plain(sequence: list[bool], chance: float, alarm: float) -> int | None:
    """The step of the first alarm: the largest sum over all stretches that end at a step reaches `alarm`."""
    slow = (1 + chance) / 2
    terms = [log(slow / chance) if hit else log((1 - slow) / (1 - chance)) for hit in sequence]
    for end in range(1, len(terms) + 1):
        if max(sum(terms[begin:end]) for begin in range(end)) >= alarm:
            return end - 1
    return None


@pytest.mark.parametrize("ranks", [2, 4, 9])
def test_cumulative_sum_equals_brute_force(ranks):
    chance, rng = max(1, ranks // 8) / ranks, random.Random(ranks)
    alarms = 0
    for _ in range(60):
        sequence = [rng.random() < rng.choice([chance, 0.8]) for _ in range(60)]
        onset, found = Onset(), None
        for step, hit in enumerate(sequence):
            onset.note(step, hit, chance, alarm=5.0)
            if onset.slow:
                found = step
                break
        assert found == plain(sequence, chance, 5.0)
        alarms += found is not None
    assert alarms > 5


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
@pytest.mark.parametrize("spread", ["normal", "heavy"])
def test_false_alarms_stay_within_the_bound(ranks, spread):
    """At an alarm that allows one in 200 steps of a rank, equal ranks raise fewer; at the real one none here."""
    rng, allowed, steps = random.Random(ranks), 200, 4000
    loose, real, alarms = [Onset() for _ in range(ranks)], [Onset() for _ in range(ranks)], 0
    for step in range(steps):
        if spread == "normal":
            own = [max(rng.gauss(1, 0.2), 0.01) for _ in range(ranks)]
        else:
            own = [rng.paretovariate(1.5) for _ in range(ranks)]
        found, chance = hits(own)
        for i, hit in enumerate(found):
            loose[i].note(step, hit, chance, alarm=log(allowed))
            real[i].note(step, hit, chance)
            if loose[i].slow:
                alarms += 1
                loose[i] = Onset()
    assert alarms <= ranks * steps / allowed
    assert not any(onset.stretches for onset in real)
    assert FALSE_ALARM_STEPS >= 10**6


def test_rank_that_becomes_slow_has_its_step():
    rng = random.Random(5)
    ranks = [Process(rank) for rank in range(4)]
    for step in range(600):
        own = [rng.uniform(0.9, 1.1) for _ in ranks]
        if step >= 350:
            own[2] += 0.3
        for process, seconds in zip(ranks, own, strict=True):
            process.step(forward=seconds, communication=0.1 + max(own) - seconds)
    found = document(compute(run_of(*[one.finished() for one in ranks]), 0))["straggler"]
    assert found["culprit"] == 2
    # The sum may have been above zero by luck for some steps before.
    assert abs(found["since_step"] - 350) <= 15
    (onset,) = found["onsets"]
    assert onset == {"rank": 2, "attempt": 1, "first_step": found["since_step"], "last_step": None}


def test_open_stretch_ends_with_its_attempt():
    def attempt(number, start, slow):
        ranks = [Process(rank, number, start) for rank in range(4)]
        for _ in range(60):
            own = [1.0, 1.0, 1.5 if slow else 1.0, 1.0]
            for process, seconds in zip(ranks, own, strict=True):
                process.step(forward=seconds, communication=0.1 + max(own) - seconds)
        return ranks

    first = [one.killed() for one in attempt(1, 0, slow=True)]
    second = attempt(2, 200, slow=False)
    found = document(compute(run_of(*first, *[one.resumed(59).finished() for one in second]), 0))["straggler"]
    assert found["onsets"] == [{"rank": 2, "attempt": 1, "first_step": 1, "last_step": 59}]
    assert found["since_step"] is None
    # Slow before and after the restart: slow since the first attempt.
    second = [one.resumed(59).finished() for one in attempt(2, 200, slow=True)]
    first = [one.killed() for one in attempt(1, 0, slow=True)]
    found = document(compute(run_of(*first, *second), 0))["straggler"]
    assert (found["culprit"], found["since_step"]) == (2, 1)
