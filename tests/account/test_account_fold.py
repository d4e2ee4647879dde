"""An attempt's fold: its memory, its copies, and the thresholds under which its sums stay valid."""

import pickle
import random
from array import array
from dataclasses import replace
from statistics import median

from goodput.account.fold import ascending
from support.account.account_history import Process, ns, run_of

from goodput.account.account import Engine
from goodput.account.facts import gather
from goodput.account.states import INDEX, NOTHING


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
        fold = folded(one).folds[0, 1]
        return len(pickle.dumps([value for name, value in vars(fold).items() if name != "attempt"]))

    # After 64 steps the median is fixed and the lengths are dropped.
    assert abs(size(6000) - size(600)) < 200


def test_first_step_is_compared_with_the_median_of_64():
    """Its excess is over the median of the steps after it, in whatever portions they came; those wait as 4 bytes each."""
    rng = random.Random(2)
    for count in (1, 2, 7, 40, 63, 64, 100):
        steps = [1 + rng.random() for _ in range(count)]
        one = Process().step(forward=9)
        for seconds in steps:
            one.step(forward=seconds)
        engine = folded(one)
        assert sum(memoryview(own).nbytes for own in engine.folds[0, 1]._others) <= 8 * min(count, 63)
        lengths = [row.end_ns - row.start_ns for row in one.rows][1:65]
        assert engine.finish().gpu_ns()[INDEX["compile"]] == ns(9) - int(median(lengths))


def test_folds_leave_what_they_share_alone():
    """Steps that are kept, cut by the bound and lost, and a tail."""
    one = Process().steps(9, forward=4, loader=1).between(evaluation=3)
    run = run_of(one)
    engine = Engine(run, gather(run, one.now_ns, ns(60)))
    fold = engine.folds[0, 1]
    fold.limit, fold.bound = 5, replace(fold.bound, to_ns=one.rows[5].end_ns - ns(1))
    for row in one.rows:
        engine.row((0, 1), row)
    engine.finish()
    assert sum(fold.cut) == ns(4) and fold.lost_steps == 0 < fold.kept_steps and not any(NOTHING)


def test_lengths_of_steps_that_need_eight_bytes():
    found = array("I")
    for values in ([5, 1 << 31], [7, (1 << 32) - 1], [1 << 32], [3, -2]):
        found = ascending(values, found)
    assert found.tolist() == [-2, 3, 5, 7, 1 << 31, (1 << 32) - 1, 1 << 32] and found.itemsize == 8
    assert ascending([2, 1], array("I")).itemsize == 4
    many = ascending(range(40), array("I"))
    for more in ([7], [1 << 32], [-2]):
        found = ascending(more, many)
        assert found.tolist() == sorted([*range(40), *more]) and found.itemsize == (4 if more == [7] else 8)


def test_fold_fits_thresholds_that_change_no_wait():
    one = Process().steps(5, forward=4).between(none=30).step(loader=20, forward=1)
    one.step(loader=100, forward=1).steps(3, forward=4)
    fold = folded(one).folds[0, 1]
    fits = [fold.fits(fold.bound, fold.limit, ns(seconds), []) for seconds in (29, 30, 60, 100, 101, 300)]
    # The wait of 30 s is no stall and the one of 101 s is; a higher threshold would change that.
    assert fits == [False, True, True, True, False, False]
