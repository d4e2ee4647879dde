"""The core by hand: thresholds, first steps, planned phases, groups, tails, and what it refuses."""

from __future__ import annotations

from array import array

import pytest

from goodput._core import DIED, ENDED, RUNNING, CoreError, CoreRun

SECOND = 10**9
STATES = ("unattributed", "loader", "productive", "communication", "evaluation", "rollout")


class Rank:
    """One attempt in a run, to which steps are added by seconds in each state."""

    def __init__(self, run: CoreRun, rank: int, group: int, before: int = -1, start: float = 0, **place: int):
        self.run, self.index = (
            run,
            run.attempt(rank, round(start * SECOND), group, STATES, before=before, **place),
        )
        self.totals, self.outside = [0] * len(STATES), [0] * len(STATES)
        self.end, self.number, self.step = round(start * SECOND), 0, -1

    def gap(self, **seconds: float) -> Rank:
        for state, value in seconds.items():
            ns = round(value * SECOND)
            self.outside[STATES.index(state)] += ns
            self.totals[STATES.index(state)] += ns
            self.end += ns
        return self

    def steps(self, count: int = 1, of: int = 1, **seconds: float) -> Rank:
        """`count` rows, each of as many steps and of these seconds together."""
        for _ in range(count):
            for state, value in seconds.items():
                self.totals[STATES.index(state)] += round(value * SECOND)
                self.end += round(value * SECOND)
            self.number, self.step = self.number + of, self.step + of
            row = [self.number, self.step, self.end, 0, 0, *self.totals, *self.outside]
            self.run.fold(self.index, array("q", row))
        return self

    def read(self, *names: str) -> list[float]:
        values = self.run.read(self.index)
        return [
            values[name] / SECOND if name.endswith("_ns") or name in NS else values[name] for name in names
        ]

    def tail(self, how: int, state: str, seconds: float, **known: float) -> dict[str, float]:
        totals = list(self.totals)
        for name, value in known.items():
            totals[STATES.index(name)] += round(value * SECOND)
        found = self.run.tail(self.index, totals, state, self.end + round(seconds * SECOND), how)
        return {
            name: ns / SECOND for name, ns in found.items() if ns and name not in ("compute_ns", "saved_ns")
        }


NS = {
    *STATES,
    "stall",
    "compile",
    "startup",
    *(f"outside_{state}" for state in (*STATES, "stall", "startup")),
}


@pytest.fixture
def alone() -> Rank:
    run = CoreRun()
    return Rank(run, 0, run.group())


def threshold(rank: Rank) -> float:
    return rank.read("threshold_ns")[0]


def test_threshold_follows_the_steps_before(alone):
    assert threshold(alone) == 1800  # nothing is known
    assert threshold(alone.steps(productive=500)) == 1800  # the first step compiles
    assert threshold(alone.steps(productive=8)) == 80  # of fewer than eight the longest
    assert threshold(alone.steps(6, productive=1)) == 80
    assert threshold(alone.steps(productive=1)) == 60  # of eight the second longest, 1 s
    assert threshold(alone.steps(92, productive=1).steps(productive=9)) == 80  # 101 lengths: index 99, 8 s
    assert threshold(alone.steps(1024, productive=1)) == 60  # they have left the last 1 024


def test_threshold_goes_on_in_the_next_attempt(alone):
    alone.steps(20, productive=10)
    later = Rank(alone.run, 0, alone.run.group(), before=alone.index, start=1000)
    assert threshold(later) == 100
    assert threshold(later.steps(productive=400)) == 100


def test_next_attempt_goes_on_with_longest_phases_alone(alone):
    """The only step before is a first one, which is no usual length."""
    alone.steps(productive=200, evaluation=300)
    later = Rank(alone.run, 0, alone.run.group(), before=alone.index, start=1000).steps(2, productive=1)
    assert later.read("longest_evaluation") == [300 * SECOND]
    assert threshold(later) == 60


def test_step_is_a_stall_by_the_steps_before_it(alone):
    """105 s with 5 s of compute, 90 s in a collective and 10 s of a planned phase; longer steps later change nothing."""
    alone.steps(10, productive=2).steps(productive=5, communication=90, evaluation=10)
    assert alone.read("stall", "evaluation", "communication") == [95, 10, 0]
    assert alone.steps(200, productive=30).read("stall") == [95]


def test_gap_between_steps_is_a_stall(alone):
    alone.steps(10, productive=2).gap(loader=61).steps(productive=2)
    assert alone.read("outside_stall", "outside_loader", "stall") == [61, 0, 0]


def test_first_step_compiles_as_far_as_compute_explains(alone):
    """30 s of which 20 s loader, where others take 5 s with 1 s of loader: 10 - 4 = 6 s."""
    alone.gap(unattributed=3, evaluation=1).steps(productive=10, loader=20)
    assert alone.read("provisional", "compile", "loader", "productive") == [1, 10, 20, 0]
    alone.steps(14, productive=4, loader=1)
    assert alone.read("provisional", "compile") == [1, 10]
    alone.steps(1, productive=4, loader=1)
    assert alone.read("provisional", "compile", "loader", "productive") == [0, 6, 35, 64]
    assert alone.steps(50, productive=9).read("compile", "outside_startup") == [6, 4]


def test_first_step_is_fixed_at_the_end_of_its_attempt(alone):
    alone.steps(productive=10).steps(2, productive=4)
    alone.run.end(alone.index)
    assert alone.read("provisional", "compile", "productive") == [0, 6, 12]


def test_steps_beyond_the_limit_are_lost_by_the_first_restart_from_before_them(alone):
    """Steps 0 to 9 of 5 s; a restart resumes at 6, a later one at 4."""
    alone.run.limit(alone.index, 4, [6, 4])
    alone.steps(10, productive=5)
    assert alone.read("lost_ns", "lost_steps", "steps") == [25, 5, 10]
    assert [alone.run.loss(alone.index, restart) for restart in (0, 1)] == [
        (3, 15 * SECOND),
        (2, 10 * SECOND),
    ]
    with pytest.raises(CoreError):
        alone.run.limit(alone.index, 6)


def test_row_of_several_steps_is_lost_in_part(alone):
    alone.run.limit(alone.index, 6, [6])
    alone.steps(of=10, productive=40, loader=10)
    assert alone.read("lost_ns", "productive", "loader", "lost_steps") == [15, 28, 7, 3]


def test_planned_phase_is_excused_up_to_ten_times_its_longest(alone):
    alone.steps(10, productive=1).gap(evaluation=300).steps(productive=1)
    assert alone.gap(evaluation=3100).steps(productive=1).read("outside_evaluation", "outside_stall") == [
        3300,
        100,
    ]


def test_ranks_are_compared_in_each_step():
    run = CoreRun()
    group = run.group()
    ranks = [Rank(run, rank, group) for rank in range(4)]
    for one, seconds in zip(ranks, (3, 3, 3, 1), strict=True):
        one.steps(20, productive=1, communication=seconds)
    assert [one.read("straggler_ns", "communication", "pending_rows") for one in ranks] == [
        [40, 20, 0]
    ] * 3 + [[0, 20, 0]]
    assert ranks[3].read("caused_ns", "last_steps", "compared_steps") == [120, 20, 20]


def test_group_goes_on_without_a_rank_that_was_not_heard_of():
    run = CoreRun()
    group = run.group()
    one, other, gone = ranks = [Rank(run, rank, group) for rank in range(3)]
    for rank in ranks:
        rank.steps(20, communication=1)
    one.steps(5, communication=2)
    other.steps(5, communication=1)
    assert one.read("straggler_ns", "pending_rows") == [0, 5]
    run.absent(gone.index)
    assert one.read("straggler_ns", "pending_rows") == [5, 0]
    gone.steps(5, communication=3)  # its own time, since the others' step was compared
    assert gone.read("communication", "straggler_ns", "late_rows") == [35, 0, 5]
    for rank in (one, other, gone):
        rank.steps(communication=4)
    assert gone.read("late_rows", "pending_rows", "compared_steps") == [5, 0, 21]


def test_sums_of_different_lengths_are_compared_up_to_a_common_step():
    """Pages whose rings begin at different steps: what was before is a sum in each."""
    run = CoreRun()
    group = run.group()
    one, other = Rank(run, 0, group), Rank(run, 1, group)
    one.steps(of=100, communication=100).steps(30, communication=1)
    other.steps(of=103, communication=309).steps(27, communication=3)
    assert one.read("straggler_ns", "caused_ns", "compared_steps") == [0, 206 + 54, 27]
    assert other.read("straggler_ns", "communication", "pending_rows") == [260, 130, 0]


def test_rank_that_joins_later_takes_no_part_in_earlier_steps():
    run = CoreRun()
    group = run.group()
    first = Rank(run, 0, group).steps(20, communication=1)
    second = Rank(run, 1, group).steps(20, communication=2)
    assert second.read("communication", "late_rows") == [40, 20]
    first.steps(communication=1)
    assert second.steps(communication=2).read("straggler_ns", "late_rows") == [1, 20]


def test_rank_far_ahead_does_not_wait_for_ever():
    run = CoreRun()
    group = run.group()
    ahead, behind = Rank(run, 0, group), Rank(run, 1, group)
    ahead.steps(4096, communication=1)
    assert ahead.read("pending_rows") == [4096]
    ahead.steps(10, communication=1)
    assert ahead.read("pending_rows", "communication") == [0, 4106]
    assert behind.steps(20, communication=1).read("late_rows", "communication") == [20, 20]


def test_rows_that_contradict_each_other_are_cut(alone):
    alone.steps(productive=1)
    values = [2, 1, 3 * SECOND, 0, 0, 0, 0, 11 * SECOND, 0, 0, 0, *[0] * 6]
    alone.run.fold(alone.index, array("q", values))
    assert alone.read("clamped", "productive", "compile") == [1, 2, 1]


def test_row_out_of_range_is_left_out(alone):
    alone.steps(productive=1)
    good = [2, 1, 2 * SECOND, 0, 0, *alone.totals, *alone.outside]
    for at in range(len(good)):
        for wrong in (-1, 1 << 62):
            row = [*good[:at], wrong, *good[at + 1 :]]
            assert alone.run.fold(alone.index, array("q", row)).wrong == 1
    assert alone.run.fold(alone.index, array("q", good)) == (1, 0, 0)


def test_tail_of_a_process(alone):
    alone.steps(10, productive=2)
    assert alone.tail(RUNNING, "loader", 9, productive=2) == {"productive": 2, "loader": 7}
    assert alone.tail(DIED, "loader", 9, productive=2) == {"lost": 9}
    assert alone.tail(ENDED, "loader", 9, productive=2) == {"unattributed": 2, "loader": 7}
    assert alone.tail(RUNNING, "loader", 60, productive=2) == {"productive": 2, "loader": 58}
    assert alone.tail(RUNNING, "loader", 61, productive=2) == {"stall": 61}
    assert alone.tail(RUNNING, "evaluation", 1801) == {"evaluation": 1800, "stall": 1}


def test_tail_before_the_first_step(alone):
    assert alone.tail(RUNNING, "loader", 4000, evaluation=5) == {"startup": 4000}
    assert alone.tail(DIED, "rollout", 4000, rollout=1900) == {"rollout": 3700, "stall": 300}


def test_phases_may_be_added(alone):
    alone.steps(20, productive=1)
    alone.run.phases(alone.index, [*STATES, "loader"])
    row = [21, 20, alone.end + 5, 0, 0, *alone.totals, 5, *alone.outside, 0]
    assert alone.run.fold(alone.index, array("q", row)) == (1, 0, 0)
    assert alone.run.read(alone.index)["loader"] == 5
    with pytest.raises(CoreError, match="core_phases: an argument out of range"):
        alone.run.phases(alone.index, STATES)
    with pytest.raises(CoreError):
        alone.run.phases(alone.index, ["loader"] * 8)


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.attempt(0, 0, 7, STATES),
        lambda run: run.attempt(0, -1, 0, STATES),
        lambda run: run.attempt(0, 0, 0, []),
        lambda run: run.attempt(0, 0, 0, ["stall"]),
        lambda run: run.attempt(1, 0, 0, STATES, before=0),
        lambda run: run.group(stages=1),
        lambda run: run.fold(0, array("q", [1, 2, 3])),
        lambda run: run.fold(0, array("Q", [1] * 17)),
        lambda run: run.fold_blocks(array("i", [0]), array("q", [2]), array("q", [1] * 17)),
        lambda run: run.fold_blocks(array("i", [5]), array("q", [1]), array("q", [1] * 17)),
        lambda run: run.end(1),
        lambda run: run.absent(-1),
        lambda run: run.read(1),
        lambda run: run.tail(0, [], "loader", -5, RUNNING),
        lambda run: run.tail(0, [], "loader", 5, 3),
        lambda run: run.read_stage(0, 0),
        lambda run: CoreRun(-1),
        lambda run: CoreRun.restore(b"x" * 500),
        lambda run: CoreRun.restore(b""),
    ],
)
def test_wrong_calls_are_refused(alone, call):
    before = alone.steps(3, productive=1).run.save()
    with pytest.raises(CoreError):
        call(alone.run)
    assert alone.run.save() == before


def test_blocks_of_several_attempts_at_once():
    run = CoreRun()
    group = run.group()
    ranks = [Rank(run, rank, group) for rank in range(3)]
    rows = [
        [number, number - 1, number * 10, 0, 0, 0, 0, number * 10, 0, 0, 0, *[0] * 6] for number in (1, 2)
    ]
    values = array("q", [*rows[0], *rows[1], *rows[0], *rows[0], *rows[1]])
    counts = run.fold_blocks(array("i", [0, 1, 2]), array("q", [2, 1, 2]), values)
    assert counts == (5, 0, 0)
    assert [run.read(one.index)["rows"] for one in ranks] == [2, 1, 2]
    assert run.read_all()[1, 0] == run.read(1)["productive"]


def test_an_earlier_tail_is_judged_by_what_came_before_the_next_attempt():
    run = CoreRun()
    first = Rank(run, 0, run.group()).steps(10, productive=1)
    before = first.tail(ENDED, "loader", 90)
    assert before == {"stall": 90}
    second = Rank(run, 0, run.group(), before=first.index, start=200).steps(9, productive=20)
    restored = CoreRun.restore(run.save())
    assert restored.save() == run.save()
    assert first.tail(ENDED, "loader", 90) == before
    assert run.read(first.index)["threshold_ns"] == 60 * SECOND
    assert second.tail(ENDED, "loader", 90) == {"loader": 90}


def test_a_row_that_crosses_the_bound_counts_in_part(alone):
    run = alone.run
    run.bound(0, 3 * SECOND, 16 * SECOND)
    alone.steps(1, productive=1).steps(1, loader=1, productive=3).gap(loader=2).steps(2, productive=6)
    assert alone.read("loader", "outside_loader", "productive") == [0.5, 2, 1.5 + 6 + 3]
    values = run.read(0)
    assert (values["steps"], values["work"]) == (2, 500_000_000 + 10**9 + 500_000_000)
    assert run.phase_times(0) == (1, [0, 0, 6 * SECOND, 0, 0, 0])


def test_a_bound_moves_on_as_long_as_nothing_was_cut_by_it(alone):
    run = alone.run
    run.bound(0, 0, 4 * SECOND)
    run.bound(0, 2 * SECOND, 4 * SECOND)
    alone.steps(1, productive=3)
    run.bound(0, 2 * SECOND, 5 * SECOND)
    for wrong in ((SECOND, 5 * SECOND), (2 * SECOND, 2 * SECOND), (-1, 0), (5, 4)):
        with pytest.raises(CoreError):
            run.bound(0, *wrong)
    alone.steps(1, productive=3)
    with pytest.raises(CoreError):
        run.bound(0, 2 * SECOND, 9 * SECOND)


def test_steps_that_an_attempt_repeats_itself(alone):
    """Steps 3 and 4 are made twice: the first time they are lost, by no restart."""
    alone.run.limit(0, 5, [1])
    alone.steps(3, productive=1).run.again(0, 2)
    alone.steps(2, productive=1)
    alone.run.again(0, None)
    alone.step = 2
    alone.steps(4, productive=1)
    assert alone.read("lost_ns", "lost_steps", "steps") == [3, 3, 9]
    assert alone.run.loss(0, 0) == (1, SECOND)


def test_the_rate_of_the_fastest_steps():
    """The first does not count; 32 steps of two seconds, then 32 of one, then eight of two."""
    run = CoreRun()
    run.attempt(0, 0, run.group(), ["productive"])
    assert run.rates() == [0.0]
    end = 0
    for number in range(1, 74):
        end += (1 if 33 < number < 66 else 2) * SECOND
        run.fold(0, array("q", [number, number - 1, end, 10 * number, 0, end, 0]))
        if number == 5:
            assert run.rates() == [5.0]
    assert run.rates() == [10.0]


def test_the_first_step_that_was_compared():
    run = CoreRun()
    group = run.group()
    ranks = [Rank(run, rank, group) for rank in range(2)]
    assert run.read(0)["first_compared"] == -1
    for one in ranks:
        one.steps(4, productive=1)
        run.end(one.index)
    assert [run.read(rank)["first_compared"] for rank in range(2)] == [1, 1]


def test_part_of_a_snapshot_is_refused(alone):
    saved = alone.gap(evaluation=9).steps(5, productive=9).run.save()
    assert CoreRun.restore(saved).read(0) == alone.run.read(0)
    for size in range(len(saved)):
        with pytest.raises(CoreError):
            CoreRun.restore(saved[:size])
    with pytest.raises(CoreError):
        CoreRun.restore(saved + b"\0")


def test_attempt_takes_over_longest_phases_without_long_steps():
    """Of the attempt before it, which has a long evaluation and no step that could matter to a threshold."""
    run = CoreRun()
    group = run.group()
    first = Rank(run, 0, group).steps(2, productive=1).gap(evaluation=600).steps(2, productive=1)
    second = Rank(run, 0, group, before=first.index, start=first.end / SECOND)
    second.steps(2, productive=1).gap(evaluation=6000).steps(1, productive=1)
    assert second.read("outside_evaluation", "outside_stall") == [6000, 0]
    assert run.planned(second.index)[1] == 6000 * SECOND
