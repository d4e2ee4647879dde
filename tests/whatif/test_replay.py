"""Replayed steps against numbers by hand and against a simulation of ranks that wait for each other."""

import numpy as np
import pytest
from support.whatif.runs import simulated, team_of

from goodput.estimates.mean import mean_of
from goodput.whatif import changes, replay, savings
from goodput.whatif.changes import Change
from goodput.whatif.steps import OWN, Team


def steps_of(change: Change | None, team: Team) -> np.ndarray:
    found = None if change is None else change.lengths(team)
    assert found is not None
    return found


def test_second_slowest_rank_limits_the_gain():
    """By hand: own times 5, 4, 3 and 3 s, 1 s of exchange; the slow rank's loader takes 2 s instead of 0."""
    compute, loader = np.array([[3, 4, 3, 3]]), np.array([[2, 0, 0, 0]])
    team = team_of(np.repeat(compute, 30, 0), np.repeat(loader, 30, 0), exchange=1)
    assert replay.recorded(team) == pytest.approx(6e9) and replay.lengths(team) == pytest.approx(6e9)
    (change,) = [one for one in changes.slow_ranks(team) if one.rank == 0]
    assert (change.text, change.state) == ("rank 0's loader as fast as the median", "loader")
    assert steps_of(change, team) == pytest.approx(5e9)
    assert steps_of(changes.state_gone("loader"), team) == pytest.approx(5e9)
    assert steps_of(changes.spread_evenly(), team) == pytest.approx((15 / 4 + 1) * 1e9)
    assert steps_of(changes.communication_less(0.5), team) == pytest.approx(5.5e9)
    saved = savings.of_steps(team, steps_of(change, team))
    assert saved.value == pytest.approx(30 * 4 * 1e9) and savings.bounds(saved) == (saved.value, saved.value)


def test_pipeline_by_hand():
    """The pipeline of docs/definitions.md: stages of 8, 8, 8 and 12 s, 8 microbatches, 3 s of other waiting."""
    own = np.repeat([[8.0, 8.0, 8.0, 12.0]], 30, 0)
    work = 36 / 8 + 7 / 8 * 12
    team = team_of(own, stages=(0, 1, 2, 3), microbatches=8, length=work + 3)
    assert replay.lengths(team) == pytest.approx((work + 3) * 1e9)
    assert steps_of(changes.slow_stage(team), team) == pytest.approx((32 / 8 + 7 / 8 * 8 + 3) * 1e9)
    assert steps_of(changes.spread_evenly(), team) == pytest.approx((36 / 8 + 7 / 8 * 9 + 3) * 1e9)
    assert changes.slow_stage(team_of(own, length=20)) is None


def test_node_left_out_takes_its_ranks_away():
    own = np.repeat([[1.0, 1.2, 3.0, 1.1, 2.0, 1.0]], 30, 0)
    team = team_of(own, hosts=("a", "a", "b", "b", "c", "c"), exchange=0.5)
    assert changes.without_node(team, "b") == pytest.approx(2.5e9)
    assert changes.without_node(team, "a") == pytest.approx(3.5e9)


@pytest.mark.parametrize("where", ["loader", "productive"])
@pytest.mark.parametrize("bursts", [1.0, 0.1])
def test_slow_rank_against_simulation(where, bursts):
    """Ranks with noise of their own and in common; one is later in all steps, or in one of ten."""
    ranks, count, slow = 6, 2000, 4
    random = np.random.default_rng(3)
    compute = 0.1 + 0.004 * random.standard_normal((count, 1)) + 0.006 * random.gamma(2, 1, (count, ranks))
    loader = 0.02 + 0.003 * random.standard_normal((count, ranks))
    late = np.zeros((count, ranks))
    late[random.random(count) < bursts, slow] = 0.05
    without = simulated(compute, loader)
    team = simulated(compute + late * (where == "productive"), loader + late * (where == "loader"))
    (change,) = [one for one in changes.slow_ranks(team) if one.rank == slow]
    assert change.state == where
    predicted, true, before = (
        steps_of(change, team).mean(),
        replay.recorded(without).mean(),
        replay.recorded(team).mean(),
    )
    assert predicted == pytest.approx(true, rel=0.003) and before > 1.02 * true


def test_intervals_cover_repetitions():
    """Of runs with autocorrelated steps: in 93 % or more the repetition without the loader is in the interval.

    These runs do not drift, which their intervals allow for: they are up to twice as wide as the errors require.
    """
    random = np.random.default_rng(5)
    errors, widths, pairs, count = [], [], 300, 150

    def run(loader: float):
        noise = np.zeros((count, 2))
        for at in range(1, count):
            noise[at] = 0.6 * noise[at - 1] + random.standard_normal(2)
        return team_of(1 + 0.02 * noise, np.full((count, 2), loader), exchange=0.1)

    change = changes.state_gone("loader")
    for _ in range(pairs):
        team, repeated = run(0.2), run(0.0)
        low, high = savings.bounds(savings.of_steps(team, steps_of(change, team)))
        saved = (replay.recorded(team).mean() - replay.recorded(repeated).mean()) * count * 2
        errors.append(abs(saved - (low + high) / 2))
        widths.append((high - low) / 2)
    assert (np.array(errors) <= widths).mean() >= 0.93
    assert np.median(widths) <= 2 * np.quantile(errors, 0.95)


def test_rare_saves_are_as_many_in_a_repetition():
    """Three saves of 3 s in 300 steps of 0.3 s: the interval is for how long they take, not for how many there are."""
    random = np.random.default_rng(5)
    covered, pairs, count = 0, 100, 300
    halves = []

    def run(loader: float) -> Team:
        team = team_of(0.25 + 0.01 * random.standard_normal((count, 2)), np.full((count, 2), loader))
        team.own[99::100, :, OWN.index("checkpoint")] = (3 + 0.1 * random.standard_normal((3, 1))) * 1e9
        return team

    change = changes.state_gone("loader")
    for _ in range(pairs):
        team, repeated = run(0.05), run(0.0)
        low, high = savings.bounds(savings.of_steps(team, steps_of(change, team)))
        saved = (replay.recorded(team).mean() - replay.recorded(repeated).mean()) * count * 2
        covered += low <= saved <= high
        halves.append((high - low) / 2 / (count * 2e9))
    # A count of three that were random (Poisson) would give twice sqrt(2 * 3) * 3 s in 300 steps, 50 ms a step.
    assert covered >= 0.93 * pairs and np.median(halves) < 0.012, (covered, np.median(halves))


def test_single_save_is_estimated_with_the_other_steps():
    team = team_of(np.ones((100, 2)) + 0.01 * np.random.default_rng(1).standard_normal((100, 2)))
    team.own[50, :, OWN.index("checkpoint")] = 30e9
    mixed = savings.by_kind(team, replay.lengths(team), mean_of)
    assert mixed == mean_of(replay.lengths(team))


def test_median_times_stay_within_their_block():
    """By hand: two blocks of 64 steps, in the second all ranks are slower; the rank gets its peers' median in each."""
    peers = np.repeat([1.0, 3.0], 64)
    times = np.stack([peers + 2, peers, peers + 0.5, peers - 0.5], axis=1)
    assert replay.as_the_median(times, 0, np.array([1, 2, 3])) == pytest.approx(peers)
    assert replay.as_the_median(times, 3, np.array([0, 1, 2])) == pytest.approx(peers - 0.5)


def test_all_states_have_a_column():
    assert len(OWN) == len(set(OWN)) and mean_of(np.ones(3)).variance == 0


def with_loader(random, produced: float, ahead: bool) -> Team:
    """Two ranks whose other work varies; a batch takes `produced` seconds, made while the rank works if `ahead`."""
    compute = 0.1 + 0.02 * random.random((600, 2))
    made = produced + 0.002 * random.standard_normal((600, 2))
    waits = np.zeros((600, 2))
    for rank in range(2):
        now = ready = 0.0
        for step in range(600):
            ready = max(ready, now if not ahead else ready) + made[step, rank]
            waits[step, rank] = max(ready - now, 0.0) if ahead else made[step, rank]
            now += waits[step, rank] + compute[step, rank]
            ready = max(ready, now - 4 * produced)  # a queue of four batches
    return team_of(compute, waits, exchange=0.01)


@pytest.mark.parametrize(
    "produced, ahead, expected", [(0.13, True, True), (0.02, False, False), (0.05, True, False)]
)
def test_loader_that_reads_ahead_and_is_waited_for(produced, ahead, expected):
    """One that reads ahead too slowly is found; one that makes each batch on request, or is never waited for, is not."""
    assert all(
        changes.reads_ahead(with_loader(np.random.default_rng(n), produced, ahead)) is expected
        for n in range(20)
    )


def drifting(random, late: float = 0.0, ranks: int = 4, count: int = 200) -> Team:
    """Ranks whose steps wander together by far more than the last rank is late."""
    together = 1 + 0.05 * np.cumsum(random.standard_normal(count))[:, None] / 5
    compute = 0.5 * np.abs(together) + 0.01 * random.gamma(2, 1, (count, ranks))
    compute[:, -1] += late
    return team_of(compute, exchange=0.01)


def test_slow_rank_of_a_drifting_run_is_named():
    """The interval of its gain reaches below zero, since a repetition drifts elsewhere; the rank is slow all the same."""
    team = drifting(np.random.default_rng(2), late=0.03)
    (change,) = changes.slow_ranks(team)
    assert change.rank == 3
    assert savings.bounds(savings.of_steps(team, steps_of(change, team)))[0] < 0


def test_equal_ranks_are_named_by_chance_in_one_of_twenty_runs():
    random = np.random.default_rng(7)
    named = [bool(changes.slow_ranks(drifting(random))) for _ in range(200)]
    assert sum(named) <= 0.05 * 200 + 4
    nodes = [-drifting(random).work for _ in range(200)]
    assert sum(changes.is_larger(one, int(one.mean(axis=0).argmax())) for one in nodes) <= 0.05 * 200 + 4


def test_equal_stages_are_not_named():
    random = np.random.default_rng(3)
    named = []
    for _ in range(200):
        own = 1 + 0.05 * random.standard_normal((100, 4))
        team = team_of(own, stages=(0, 1, 2, 3), microbatches=8, length=4)
        named.append(changes.slow_stage(team) is not None)
    assert sum(named) <= 0.05 * 200 + 4
