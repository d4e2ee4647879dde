"""When a rank became slow: the core by hand and the rate of false alarms, and its plain rules against their formula."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from math import log

import pytest
from support.account.account_history import Process, run_of
from support.core.onset_rules import FALSE_ALARM_STEPS, Onset, Stretch, hits, note_all

from goodput._core import CoreRun
from goodput.account import compute, document
from goodput.account.text import render


def core_of(steps: Sequence[Sequence[float]]) -> CoreRun:
    """A group of ranks, of each step the own times of all in ms; the first step is compared for nobody's onset."""
    run, now, ranks = CoreRun(least_stall_ns=10**15), [0] * len(steps[0]), range(len(steps[0]))
    group = run.group()
    for rank in ranks:
        run.attempt(rank, 0, group, ["productive"])
    rows = [array("q") for _ in ranks]
    for step, own in enumerate(steps):
        for rank in ranks:
            now[rank] += round(own[rank] * 1e6)
            rows[rank].extend((step + 1, step, now[rank], 0, 0, now[rank], 0))
    for rank in ranks:
        run.fold(rank, rows[rank])
    for rank in ranks:
        run.end(rank)
    return run


def stretches_of(steps: Sequence[Sequence[float]]) -> dict[int, list[Stretch]]:
    """By rank, of those that have some."""
    run = core_of(steps)
    return {rank: found for rank in range(len(steps[0])) if (found := run.stretches(rank))}


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
    # ln(0.5625 / 0.125) = 1.504 a hit, the alarm at ln 10^7 = 16.12.
    usual, slow = [[10.0] * 8] * 1000, [[10.0] * 7 + [11.0]]
    assert stretches_of(usual + slow * 10) == {}
    assert stretches_of(usual + slow * 11) == {7: [(1000, None)]}


def test_stretch_ends_when_the_rank_recovers():
    steps = [[10.0] * 7 + [11.0 if 100 <= step < 200 else 10.0] for step in range(300)]
    assert stretches_of(steps) == {7: [(100, 199)]}


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
        onset, found = Onset(alarm=5.0), None
        for step, hit in enumerate(sequence):
            onset.note(step, hit, chance)
            if onset.slow:
                found = step
                break
        assert found == plain(sequence, chance, 5.0)
        alarms += found is not None
    assert alarms > 5


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
    loose, alarms, times = [Onset(alarm=log(allowed)) for _ in range(ranks)], 0, []
    for step in range(steps):
        times.append([LAWS[law](rng) for _ in range(ranks)])
        note_all(loose, step, times[-1])
        for i, onset in enumerate(loose):
            if onset.slow:
                alarms += 1
                loose[i] = Onset(alarm=log(allowed))
    assert alarms <= 2 * ranks * steps / allowed
    assert stretches_of(times) == {}
    assert FALSE_ALARM_STEPS >= 10**6


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_correlated_noise_hardly_alarms(ranks):
    """Each rank's time depends on its last one (correlation 0.5, spread 10 %), so the bound does not hold exactly."""
    rng, count, steps, now = random.Random(ranks), 3000, [], [0.0] * ranks
    for _ in range(count):
        now = [0.5 * x + rng.gauss(0, 0.1 * 0.75**0.5) for x in now]
        steps.append([max(1 + x, 0.1) for x in now])
    assert sum(map(len, stretches_of(steps).values())) <= ranks * count / 10_000


@pytest.mark.parametrize("group, slow", [(4, 2), (10, 2), (10, 4), (16, 5), (32, 12)])
def test_several_slow_ranks_are_found_at_once(group, slow):
    """With 5 % of noise."""
    rng = random.Random(group)
    found = stretches_of(
        [
            [rng.gauss(1, 0.05) * (1.4 if rank < slow and 100 <= step < 300 else 1) for rank in range(group)]
            for step in range(500)
        ]
    )
    assert sorted(found) == list(range(slow))
    for ((first, last),) in found.values():
        assert last is not None and abs(first - 100) <= 12 and abs(last - 299) <= 12


def test_slow_rank_does_not_recover_beside_slower_one():
    rng, steps = random.Random(3), []
    for step in range(400):
        own = [rng.gauss(1, 0.05) for _ in range(8)]
        own[2] *= 3
        own[5] *= 6 if step >= 150 else 1
        steps.append(own)
    run = core_of(steps)
    # From the first step that was compared on.
    assert run.stretches(2) == [(1, None)] and run.read(2)["first_compared"] == 1
    ((first, last),) = run.stretches(5)
    assert last is None and abs(first - 150) <= 12
    assert not any(run.stretches(rank) for rank in range(8) if rank not in (2, 5))


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
