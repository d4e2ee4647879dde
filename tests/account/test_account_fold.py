"""What an attempt's fold keeps does not grow with its steps, and what it holds fits as long as it is true."""

import pickle
import random

from support.account.account_history import Process, ns, run_of

from goodput.account.account import Engine
from goodput.account.facts import gather


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

    # From the 513th step on the median is settled and its lengths are let go.
    assert abs(size(6000) - size(600)) < 200


def test_fold_fits_thresholds_that_change_no_wait():
    one = Process().steps(5, forward=4).between(none=30).step(loader=20, forward=1)
    one.step(loader=100, forward=1).steps(3, forward=4)
    fold = folded(one).folds[0, 1]
    fits = [fold.fits(fold.bound, fold.limit, ns(seconds), []) for seconds in (29, 30, 60, 100, 101, 300)]
    # Of 30 s it was said that it is no stall, of 101 s that it is one; more than 101 s would make it none.
    assert fits == [False, True, True, True, False, False]
