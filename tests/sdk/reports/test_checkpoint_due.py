"""When a checkpoint is due: the policy against its oracles, and the call in a real process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from math import exp, log

import pytest
from bench.checkpoint_adviser import FIXED_SECONDS, Law, compared
from support.paths import ROOT

from goodput.sdk.reports.checkpoint_adviser import PRIOR_SECONDS, SHAPES, Adviser, young_daly
from goodput.whatif.checkpoints import best_interval

HOUR = 3600.0
MEAN = 5 * HOUR
EXPONENTIAL = Law("exponential", 30.0, lambda random, count: random.exponential(MEAN, count))
LIMIT = Law("job limit", 60.0, lambda random, count: random.normal(6 * HOUR, 600.0, count))


@pytest.mark.parametrize(("save", "between"), [(1, 100_000), (30, 18_000), (120, 3_600), (300, 3_000)])
def test_daly_against_the_numerical_optimum(save, between):
    """The loss is flat around its least, so 3 % of the interval are nothing."""
    assert young_daly(save, between) == pytest.approx(best_interval(save, between), rel=0.03)
    assert young_daly(between * 3, between) == between


def test_hazard_is_that_of_a_direct_sum_over_the_posterior():
    """Weights of shapes as products of densities, integrated over the rate on a fine grid."""
    gaps, age = [0.3, 1.1, 0.4, 2.5], 0.7
    adviser = Adviser()
    for gap in gaps:
        adviser.note_failure(gap * PRIOR_SECONDS)
    over = under = 0.0
    for shape in SHAPES:
        prior = exp(-((log(shape) / 0.5) ** 2) / 2)
        for i in range(1, 4000):
            rate = i * 0.005
            # The prior of the rate is one failure after one unit: density exp(-rate).
            density = exp(-rate)
            for gap in gaps:
                density *= shape * rate * gap ** (shape - 1) * exp(-rate * gap**shape)
            density *= exp(-rate * age**shape)
            under += prior * density
            over += prior * density * shape * rate * age ** (shape - 1)
    assert adviser.hazard(age * PRIOR_SECONDS) * PRIOR_SECONDS == pytest.approx(over / under, rel=1e-3)


def test_rate_is_learned():
    adviser, rng = Adviser(), random.Random(1)
    assert 1 / adviser.hazard(600) == pytest.approx(PRIOR_SECONDS, rel=0.5)
    for _ in range(400):
        adviser.note_failure(rng.expovariate(1 / HOUR))
    for age in (300, 1800, 7200):
        assert 1 / adviser.hazard(age) == pytest.approx(HOUR, rel=0.2)


def test_time_without_a_failure_lowers_the_hazard():
    calm, other = Adviser(), Adviser()
    calm.note_alive(40 * HOUR)
    assert calm.hazard(600) < other.hazard(600) / 2


@pytest.mark.parametrize("seconds", [0.0, -5.0, 1e-9, 1e12])
def test_extreme_times_are_harmless(seconds):
    adviser = Adviser()
    adviser.note_failure(seconds)
    adviser.note_alive(seconds)
    adviser.note_save(seconds)
    for age in (0.0, 1.0, 1e9):
        assert 10.0 <= adviser.local_interval(age) <= 86_400.0


def test_waste_against_an_oracle_and_a_fixed_interval():
    """A short form of `python -m bench.checkpoint_adviser`, with the oracle of the exponential law in closed form."""
    best = best_interval(EXPONENTIAL.save, MEAN)
    found = compared(EXPONENTIAL, 6, 25, policy=lambda _age: best)
    assert found["adviser"][0] <= found["oracle"][0] + 0.005
    assert found["adviser"][0] < found["30 min"][0]
    limit = compared(LIMIT, 4, 20, policy=lambda _age: FIXED_SECONDS)
    assert limit["adviser"][0] < 0.75 * limit["30 min"][0]


PROGRAM = """
import json, os, sys, time
import goodput
goodput.start(run="r", rank=0, world_size=1, attempt=int(sys.argv[1]))
before = goodput.checkpoint_due()
from goodput import _checkpoint_due as due
for number in range(3):
    with goodput.step():
        pass
def soon():
    due._next_ns = 0
    return goodput.checkpoint_due()
with goodput.checkpoint(1):
    time.sleep(0.02)
soon()
after = due._part
due._part = 2.0
late = soon()
still = goodput.checkpoint_due()
goodput.checkpoint(2)
done = soon()
adviser = due.adviser
print(json.dumps([before, after, late, still, done, adviser.failures, adviser.saves, adviser.save_seconds]))
sys.stdout.flush()
if sys.argv[1] == "1":
    os.kill(os.getpid(), 9)
"""


def run(directory, attempt: int) -> list:
    environment = {"GOODPUT_DIR": str(directory), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(attempt)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_in_a_process_that_was_killed_and_started_again(tmp_path):
    """The second attempt knows of the failure of the first from its page, and each of its saves."""
    for attempt, failures in ((1, 0), (2, 1)):
        before, after, late, still, done, known, saves, seconds = run(tmp_path, attempt)
        assert (before, late, still, done) == (False, True, True, False)
        assert after < 0.01 and known == failures and saves == 2
        assert 0.01 <= seconds < 0.5  # the mean of 20 ms and nothing


def test_nothing_is_due_where_nothing_is_measured(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import goodput; print(goodput.checkpoint_due(), goodput.checkpoint_due(failures='x'))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={"GOODPUT_DISABLE": "1", "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin"},
        check=False,
    )
    assert (done.stdout, done.stderr) == ("False False\n", "")
