"""The best interval between checkpoints against runs simulated failure by failure."""

import numpy as np
import pytest

from goodput.whatif.checkpoints import best_interval, optimum, time_per_work


def simulated_time(random, work: float, interval: float, save: float, between: float) -> float:
    """Seconds that `work` seconds take, with saves and failures one by one."""
    spent = done = 0.0
    while done < work:
        piece, failure = min(interval, work - done), random.exponential(between)
        spent += min(failure, piece + save)
        if failure >= piece + save:
            done += piece
    return spent


@pytest.mark.parametrize("save, between", [(5.0, 400.0), (20.0, 300.0)])
def test_best_interval_against_simulated_failures(save, between):
    best, work = best_interval(save, between), 3000.0
    random, means = np.random.default_rng(1), {}
    for interval in (best / 2.5, best, 2.5 * best):
        found = [simulated_time(random, work, interval, save, between) for _ in range(400)]
        means[interval] = np.mean(found) / work
        assert means[interval] == pytest.approx(time_per_work(interval, save, between), rel=0.03)
    assert min(means, key=means.__getitem__) == best
    grid = np.geomspace(best / 5, best * 5, 4001)
    assert best == pytest.approx(grid[time_per_work(grid, save, between).argmin()], rel=0.01)


def test_interval_of_the_optimum_covers_the_truth():
    """500 runs of ten failures on average, with a known rate: the share that is really saved is in 93 % or more."""
    random, save, interval, between, alive = np.random.default_rng(2), 10.0, 40.0, 3600.0, 36000.0
    covered = total = 0
    for failures in random.poisson(alive / between, 500):
        if failures:
            found = optimum(save, 0.0, interval, alive, int(failures))
            work = found.seconds
            true = 1 - time_per_work(work, save, between) / time_per_work(interval, save, between)
            covered, total = covered + (found.low <= true <= found.high), total + 1
    assert total >= 499 and covered / total >= 0.93


def test_interval_that_is_best_saves_nothing():
    best = best_interval(10.0, 3600.0)
    found = optimum(10.0, 0.1, best, 36000.0, 10)
    assert abs(found.share) < 1e-6 and found.seconds == pytest.approx(best) and found.high < 0.02
