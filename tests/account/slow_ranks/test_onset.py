"""When a rank became slow: by hand, against a direct computation of the formula, and the rate of false alarms."""

from __future__ import annotations

import random
from math import log

import pytest
from support.account.account_history import Process, run_of

from goodput.account import compute, document
from goodput.account.slow_ranks.onset import FALSE_ALARM_STEPS, Onset, Stretch, hits
from goodput.account.text import render


def test_hits_of_a_step_by_hand():
    def slowest(own):
        found = hits(own)
        return found.slowest, found.chance

    # Lower median 10: over 10.5 and the largest.
    assert slowest([10, 10, 12, 10]) == ([False, False, True, False], 0.25)
    assert slowest([10, 10, 10.4, 10]) == ([False] * 4, 0.25), "largest, but not by 5 %"
    assert slowest([10, 12, 12, 10]) == ([False] * 4, 0.25), "of two equal ranks none is the slowest"
    assert slowest([10, 12]) == ([False, True], 0.5)
    # Of sixteen the two largest may be slow.
    assert slowest([10] * 14 + [12, 13]) == ([False] * 14 + [True, True], 0.125)
    assert slowest([0, 0]) == ([False, False], 0.5)


def test_several_slow_ranks_by_hand():
    found = hits([10, 12, 12, 10])
    assert (found.beside, found.chance_beside) == ([False, True, True, False], 0.5)
    # The faster half spreads from 9 to 10, so what stands out is over 10 + 2 x 1.
    assert hits([9, 10, 11.9, 13]).beside == [False, False, False, True]
    assert hits([10, 12]).chance_beside == 1, "of two ranks one is the slowest already"
    assert hits([10, 12, 12, 12]).beside == [False] * 4, "the faster half is slow too"


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


def note_all(onsets: list[Onset], step: int, own: list[float], **given) -> None:
    found = hits(own)
    for onset, hit, beside in zip(onsets, found.slowest, found.beside, strict=True):
        onset.note(step, hit, found.chance, beside, found.chance_beside, **given)


LAWS = {
    "normal": lambda rng: max(rng.gauss(1, 0.2), 0.01),
    "heavy": lambda rng: rng.paretovariate(1.5),
    "heavier": lambda rng: 1 / (rng.random() + 1e-9),
    "lognormal": lambda rng: rng.lognormvariate(0, 1),
    "two values": lambda rng: rng.choice([1, 1, 1, 2]),
}


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("law", LAWS)
def test_false_alarms_stay_within_the_bound(ranks, law):
    """At an alarm that allows one in 200 steps for each sum, equal ranks raise fewer; at the real one none here."""
    rng, allowed, steps = random.Random(ranks), 200, 1500
    loose, real, alarms = [Onset() for _ in range(ranks)], [Onset() for _ in range(ranks)], 0
    for step in range(steps):
        own = [LAWS[law](rng) for _ in range(ranks)]
        note_all(loose, step, own, alarm=log(allowed))
        note_all(real, step, own)
        for i, onset in enumerate(loose):
            if onset.slow:
                alarms += 1
                loose[i] = Onset()
    assert alarms <= 2 * ranks * steps / allowed
    assert not any(onset.stretches for onset in real)
    assert FALSE_ALARM_STEPS >= 10**6


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_correlated_noise_hardly_alarms(ranks):
    """Each rank's time depends on its last one (correlation 0.5, spread 10 %), so the bound does not hold exactly."""
    rng, steps = random.Random(ranks), 3000
    onsets, now = [Onset() for _ in range(ranks)], [0.0] * ranks
    for step in range(steps):
        now = [0.5 * x + rng.gauss(0, 0.1 * 0.75**0.5) for x in now]
        note_all(onsets, step, [max(1 + x, 0.1) for x in now])
    assert sum(len(onset.stretches) for onset in onsets) <= ranks * steps / 10_000


def stretches(
    group: int, factors: dict[int, float], slow: range, steps: int = 500
) -> dict[int, list[Stretch]]:
    """Of ranks with 5 % of noise, some slower in a part of the steps: those that have stretches."""
    rng = random.Random(group)
    onsets = [Onset() for _ in range(group)]
    for step in range(steps):
        own = [rng.gauss(1, 0.05) * (factors.get(i, 1) if step in slow else 1) for i in range(group)]
        note_all(onsets, step, own)
    return {i: onset.stretches for i, onset in enumerate(onsets) if onset.stretches}


@pytest.mark.parametrize("group, slow", [(4, 2), (10, 2), (10, 4), (16, 5), (32, 12)])
def test_several_slow_ranks_are_found_at_once(group, slow):
    found = stretches(group, dict.fromkeys(range(slow), 1.4), range(100, 300))
    assert sorted(found) == list(range(slow))
    for (stretch,) in found.values():
        assert abs(stretch.first - 100) <= 12 and abs(stretch.last - 299) <= 12


def test_slow_rank_does_not_recover_beside_slower_one():
    rng, onsets = random.Random(3), [Onset() for _ in range(8)]
    for step in range(400):
        own = [rng.gauss(1, 0.05) for _ in onsets]
        own[2] *= 3
        own[5] *= 6 if step >= 150 else 1
        note_all(onsets, step, own)
    assert onsets[2].stretches == [Stretch(0, None)] and onsets[2].first == 0
    (late,) = onsets[5].stretches
    assert late.last is None and abs(late.first - 150) <= 12
    assert not any(onset.stretches for i, onset in enumerate(onsets) if i not in (2, 5))


def test_stretches_are_in_text_and_document():
    ranks = [Process(rank) for rank in range(8)]
    for step in range(400):
        own = [1.0 + 0.001 * rank for rank in range(8)]
        own[1] *= 1.5 if step <= 213 else 1
        own[3] *= 1.5 if 100 <= step <= 250 else 1
        own[6] *= 1.6
        for process, seconds in zip(ranks, own, strict=True):
            process.step(forward=seconds, communication=0.1 + max(own) - seconds)
    found = document(compute(run_of(*[one.finished() for one in ranks]), 0))
    assert [
        (o["rank"], o["first_step"], o["last_step"], o["from_start"]) for o in found["straggler"]["onsets"]
    ] == [
        (1, 1, 213, True),
        (3, 100, 250, False),
        (6, 1, None, True),
    ]
    assert (found["straggler"]["culprit"], found["straggler"]["since_start"]) == (6, True)
    text = " ".join(render(found, full=True).split())
    assert "slow rank: 6 on n6 (productive, forward) from the start, which explains" in text
    assert "slow in stretches: rank 3 steps 100 to 250; rank 1 from the start until step 213" in text


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
    assert onset == {
        "rank": 2,
        "attempt": 1,
        "first_step": found["since_step"],
        "last_step": None,
        "from_start": False,
    }


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
    assert found["onsets"] == [
        {"rank": 2, "attempt": 1, "first_step": 1, "last_step": 59, "from_start": True}
    ]
    assert found["since_step"] is None
    # Slow before and after the restart: slow since the first attempt.
    second = [one.resumed(59).finished() for one in attempt(2, 200, slow=True)]
    first = [one.killed() for one in attempt(1, 0, slow=True)]
    found = document(compute(run_of(*first, *second), 0))["straggler"]
    assert (found["culprit"], found["since_step"]) == (2, 1)
