"""An attempt's fold: its memory, and the thresholds under which its sums stay valid."""

import pickle
import random
from statistics import median

from support.account.account_history import Process, ns, run_of

from goodput.account.account import Engine
from goodput.account.facts import gather
from goodput.account.states import INDEX


def folded(one: Process, threshold_ns: int = ns(60)) -> Engine:
    run = run_of(one)
    engine = Engine(run, gather(run, one.now_ns, threshold_ns))
    for row in one.rows:
        engine.row((0, 1), row)
    return engine


def test_fold_memory_does_not_grow_with_steps():
    rng = random.Random(1)

    def size(steps: int) -> int:
        one = Process()
        for _ in range(steps):
            one.step(forward=2 + rng.random(), loader=rng.random()).between(evaluation=1 + rng.random())
        return len(pickle.dumps(folded(one).folds[0, 1].__dict__ | {"attempt": None}))

    # After 512 steps the median is fixed and the lengths are dropped.
    assert abs(size(6000) - size(600)) < 200


def test_first_step_is_compared_with_the_median_of_512():
    """Its excess is over the median of the steps after it, in whatever portions they came; those wait as 8 bytes each."""
    rng = random.Random(2)
    for count in (1, 2, 7, 100, 511, 512, 700):
        steps = [1 + rng.random() for _ in range(count)]
        one = Process().step(forward=9)
        for seconds in steps:
            one.step(forward=seconds)
        engine = folded(one)
        assert sum(memoryview(own).nbytes for own in engine.folds[0, 1]._others) <= 16 * min(count, 511)
        lengths = [row.end_ns - row.start_ns for row in one.rows][1:513]
        assert engine.finish().gpu_ns()[INDEX["compile"]] == ns(9) - int(median(lengths))


def test_fold_fits_thresholds_that_change_no_wait():
    one = Process().steps(5, forward=4).between(none=30).step(loader=20, forward=1)
    one.step(loader=100, forward=1).steps(3, forward=4)
    fold = folded(one).folds[0, 1]
    fits = [fold.fits(fold.bound, fold.limit, ns(seconds), []) for seconds in (29, 30, 60, 100, 101, 300)]
    # The wait of 30 s is no stall and the one of 101 s is; a higher threshold would change that.
    assert fits == [False, True, True, True, False, False]
