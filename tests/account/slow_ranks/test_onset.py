"""When a rank became slow: by hand, against a direct computation of the formula, and the rate of false alarms."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from math import log

import pytest
from support.account.account_history import Process, run_of

from goodput._core import CoreRun
from goodput.account import compute, document
from goodput.account.slow_ranks.onset import Stretch
from goodput.account.text import render

SECOND = 10**9
# The first step of an attempt is fixed once 15 more are known, and counts for no stretch.
QUIET = 16


class Steps:
    """A group's steps, one after the other, from the own times of its ranks; first QUIET equal ones, numbers below 0."""

    def __init__(self, ranks: int):
        self.run, self.ends, self.totals, self.step = (
            CoreRun(),
            [0] * ranks,
            [[0, 0] for _ in range(ranks)],
            0,
        )
        group = self.run.group()
        for rank in range(ranks):
            self.run.attempt(rank, 0, group, ["productive", "communication"])
        for _ in range(QUIET):
            self.add([1.0] * ranks)

    def add(self, own: Sequence[float]) -> None:
        longest = max(own)
        for rank, seconds in enumerate(own):
            busy, total = round(seconds * SECOND), self.totals[rank]
            total[0] += busy
            total[1] += round((longest + 0.1) * SECOND) - busy
            self.ends[rank] = sum(total)
            self.run.fold(rank, array("q", [self.step + 1, self.step, self.ends[rank], 0, 0, *total, 0, 0]))
        self.step += 1

    def slow(self) -> list[int]:
        """The ranks that are slow now."""
        return [rank for rank in range(len(self.ends)) if self.run.read(rank)["slow"]]

    def stretches(self) -> dict[int, list[Stretch]]:
        """By rank, with steps counted after the quiet ones."""
        found = {rank: self.run.stretches(rank) for rank in range(len(self.ends))}
        return {
            rank: [Stretch(a - QUIET, None if b is None else b - QUIET) for a, b in own]
            for rank, own in found.items()
            if own
        }


def stretches_of(steps: Iterable[Sequence[float]], ranks: int) -> dict[int, list[Stretch]]:
    found = Steps(ranks)
    for own in steps:
        found.add(own)
    return found.stretches()


@pytest.mark.parametrize(
    ("own", "slow"),
    [
        # Lower median 10: over 10.5 and the largest.
        ([10, 10, 12, 10], {2}),
        ([10, 10, 10.4, 10], set()),  # largest, but not by 5 %
        ([10, 12], {1}),
        # Of sixteen the two largest may be slow.
        ([10] * 14 + [12, 13], {14, 15}),
        ([0, 0], set()),
        # Of two equal ranks none is the slowest, but both are beside each other.
        ([10, 12, 12, 10], {1, 2}),
        # The faster half spreads from 9 to 10, so what stands out is over 10 + 2 x 1.
        ([9, 10, 11.9, 13], {3}),
        ([10, 12, 12, 12], set()),  # the faster half is slow too
    ],
)
def test_steps_by_hand(own, slow):
    """The same step again and again."""
    assert set(stretches_of([own] * 100, len(own))) == slow


def test_eleventh_hit_of_eight_ranks_alarms():
    steps, seen = Steps(8), []
    for step in range(1020):
        steps.add([1.0] * 7 + [1.5 if step >= 1000 else 1.0])
        seen.append(steps.slow() == [7])
    # ln(0.5625 / 0.125) = 1.504 a hit, the alarm at ln 10^7 = 16.12. Beside others, of which a quarter may be slow, it
    # is ln(0.8125 / 0.25) = 1.179.
    assert seen.index(True) == 1010
    assert steps.stretches() == {7: [Stretch(1000, None)]}


def test_stretch_ends_when_the_rank_recovers():
    steps = Steps(8)
    for step in range(300):
        steps.add([1.0] * 7 + [1.5 if 100 <= step < 200 else 1.0])
    assert steps.stretches() == {7: [Stretch(100, 199)]} and not steps.slow()


def plain(sequence: list[bool], *laws: tuple[float, float]) -> int | None:
    """The step of the first alarm: the largest sum over all stretches that end at a step reaches ln 10^7.

    `laws` are the chance of a hit by luck and the share of hits of a slow rank.
    """
    found = []
    for chance, share in laws:
        slow = share + (1 - share) * chance
        best = 0.0
        for step, hit in enumerate(sequence):
            best = max(best, 0.0) + (log(slow / chance) if hit else log((1 - slow) / (1 - chance)))
            if best >= log(10**7):
                found.append(step)
                break
    return min(found, default=None)


@pytest.mark.parametrize("ranks", [2, 4, 9])
def test_cumulative_sum_equals_brute_force(ranks):
    """One rank is hit, as the slowest and, of four and more, beside others; of these a quarter at least may be slow."""
    laws = [(max(1, ranks // 8) / ranks, 0.5)] + [(max(1, ranks // 4) / ranks, 0.75)] * (ranks > 2)
    rng, alarms = random.Random(ranks), 0
    for _ in range(60):
        share = rng.choice([laws[0][0], 0.7, 0.95])
        sequence = [rng.random() < share for _ in range(150)]
        steps, found = Steps(ranks), None
        for step, hit in enumerate(sequence):
            steps.add([1.5 if hit else 1.0] + [1.0] * (ranks - 1))
            if steps.slow():
                found = step
                break
        assert found == plain(sequence, *laws)
        alarms += found is not None
    assert 5 < alarms < 60


LAWS = {
    "normal": lambda rng: max(rng.gauss(1, 0.2), 0.01),
    "heavy": lambda rng: min(rng.paretovariate(1.5), 1000),
    "heavier": lambda rng: min(1 / (rng.random() + 1e-9), 1000),
    "lognormal": lambda rng: rng.lognormvariate(0, 1),
    "two values": lambda rng: rng.choice([1, 1, 1, 2]),
}


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("law", LAWS)
def test_equal_ranks_raise_no_alarm(ranks, law):
    rng = random.Random(ranks)
    assert not stretches_of(([LAWS[law](rng) for _ in range(ranks)] for _ in range(3000)), ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_correlated_noise_hardly_alarms(ranks):
    """Each rank's time depends on its last one (correlation 0.5, spread 10 %), so the bound does not hold exactly."""
    rng, steps, now = random.Random(ranks), Steps(ranks), [0.0] * ranks
    for _ in range(3000):
        now = [0.5 * x + rng.gauss(0, 0.1 * 0.75**0.5) for x in now]
        steps.add([max(1 + x, 0.1) for x in now])
    assert sum(map(len, steps.stretches().values())) <= ranks * 3000 / 10_000


@pytest.mark.parametrize("group, slow", [(4, 2), (10, 2), (10, 4), (16, 5), (32, 12)])
def test_several_slow_ranks_are_found_at_once(group, slow):
    """Of ranks with 5 % of noise, some slower in a part of the steps."""
    rng = random.Random(group)
    found = stretches_of(
        (
            [rng.gauss(1, 0.05) * (1.4 if rank < slow and 100 <= step < 300 else 1) for rank in range(group)]
            for step in range(500)
        ),
        group,
    )
    assert sorted(found) == list(range(slow))
    for (stretch,) in found.values():
        assert abs(stretch.first - 100) <= 12 and abs(stretch.last - 299) <= 12


def test_slow_rank_does_not_recover_beside_slower_one():
    rng, steps = random.Random(3), Steps(8)
    for step in range(400):
        own = [rng.gauss(1, 0.05) for _ in range(8)]
        own[2] *= 3
        own[5] *= 6 if step >= 150 else 1
        steps.add(own)
    found = steps.stretches()
    assert found[2] == [Stretch(0, None)] and sorted(found) == [2, 5]
    (late,) = found[5]
    assert late.last is None and abs(late.first - 150) <= 12


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
