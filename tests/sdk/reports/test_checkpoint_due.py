"""When a checkpoint is due: the policy against its oracles, and the call in a real process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from math import exp, log, pi, sqrt
from types import SimpleNamespace

import pytest
from bench.trainer.checkpoint_adviser import FIXED_SECONDS, Law, compared, limited
from support.paths import ROOT

from goodput.sdk.reports import checkpoint_due, failure_laws
from goodput.sdk.reports.checkpoint_adviser import (
    INTERVAL_SECONDS_MAX,
    USUAL_SECONDS,
    Adviser,
    planned,
    young_daly,
)
from goodput.sdk.reports.failure_laws import PRIOR_SECONDS, FailureLaws
from goodput.whatif.checkpoints import best_interval

HOUR = 3600.0
MEAN = 5 * HOUR
EXPONENTIAL = Law("exponential", 30.0, lambda random, count: random.exponential(MEAN, count))
LIMIT = Law("job limit", 60.0, lambda random, count: random.normal(6 * HOUR, 600.0, count))
LIVES, ALIVE, AGE = [0.3, 1.1, 0.4, 2.5], 0.9, 0.7


@pytest.mark.parametrize(("save", "between"), [(1, 100_000), (30, 18_000), (120, 3_600), (300, 3_000)])
def test_daly_against_the_numerical_optimum(save, between):
    """The loss is flat around its least, so 3 % of the interval are nothing."""
    assert young_daly(save, between) == pytest.approx(best_interval(save, between), rel=0.03)
    assert young_daly(between * 3, between) == between


def test_weibull_posterior_is_that_of_a_direct_sum():
    """Densities multiplied and integrated over the rate, which is gamma with one failure after one unit, step by step."""

    def joint(shape: float, lived: list[float]) -> float:
        found = 0.0
        for i in range(1, 4000):
            rate = i * 0.005
            density = exp(-rate)
            for life in LIVES:
                density *= shape * rate * life ** (shape - 1) * exp(-rate * life**shape)
            for life in lived:
                density *= exp(-rate * life**shape)
            found += 0.005 * density
        return found

    family = failure_laws._Weibull()
    tell(family)
    priors = [exp(-((log(shape) / failure_laws.SHAPE_SPREAD) ** 2) / 2) for shape in failure_laws.SHAPES]
    before, after = (
        sum(prior * joint(shape, lived) for prior, shape in zip(priors, failure_laws.SHAPES, strict=True))
        / sum(priors)
        for lived in ([ALIVE], [ALIVE, AGE])
    )
    assert family.evidence() == pytest.approx(log(before), abs=1e-3)
    assert family.survival(AGE) == pytest.approx(after / before, rel=1e-3)


def test_bursts_posterior_is_that_of_a_direct_sum():
    before = after = whole = 0.0
    for soon in failure_laws.SOON:
        for slow in failure_laws.RATES:
            for fast in failure_laws.RATES:
                if fast < failure_laws.RATIO_MIN * slow:
                    continue

                def lives(life, soon=soon, fast=fast, slow=slow):
                    return soon * exp(-fast * life) + (1 - soon) * exp(-slow * life)

                prior = exp(-((log(slow) / failure_laws.CENTRE_SPREAD) ** 2) / 2)
                likelihood = prior * lives(ALIVE)
                for life in LIVES:
                    likelihood *= soon * fast * exp(-fast * life) + (1 - soon) * slow * exp(-slow * life)
                before, after, whole = before + likelihood, after + likelihood * lives(AGE), whole + prior
    family = failure_laws._Bursts()
    tell(family)
    assert family.evidence() == pytest.approx(log(before / whole), abs=1e-6)
    assert family.survival(AGE) == pytest.approx(after / before, rel=1e-3)


def test_log_normal_posterior_is_that_of_a_direct_sum():
    """Over the mean logarithm, step by step, without lives that did not fail, which the family approximates."""
    before = after = 0.0
    for spread in failure_laws.SPREADS:
        if spread < 0.05:
            continue  # no likelihood is left
        for i in range(-3000, 3000):
            mean = i * 0.002
            density = 0.002 * normal(mean, failure_laws.CENTRE_SPREAD)
            for life in LIVES:
                density *= normal(log(life) - mean, spread) / life
            before += density
            after += density * failure_laws._tail(log(AGE), mean, spread)
    family = failure_laws._LogNormal()
    for life in LIVES:
        family.failed(life)
    assert family.evidence() == pytest.approx(log(before / len(failure_laws.SPREADS)), abs=1e-3)
    assert family.survival(AGE) == pytest.approx(after / before, rel=1e-3)


def tell(family) -> None:
    for life in LIVES:
        family.failed(life)
    family.lived(ALIVE)


def normal(at: float, spread: float) -> float:
    return exp(-((at / spread) ** 2) / 2) / spread / sqrt(2 * pi)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("weibull", lambda rng: rng.weibullvariate(2 * HOUR, 2.0)),
        ("bursts", lambda rng: rng.expovariate(1 / (0.1 * HOUR if rng.random() < 0.5 else 10 * HOUR))),
        ("log-normal", lambda rng: rng.gauss(6 * HOUR, 60.0)),
    ],
)
def test_the_law_is_recognised(name, draw):
    laws, rng = FailureLaws(), random.Random(1)
    lives = sorted(draw(rng) for _ in range(300))
    for life in lives:
        laws.failed(life)
    for share in (0.25, 0.5, 0.75):
        assert laws.survival(lives[int(share * 300)]) == pytest.approx(1 - share, abs=0.05)
    assert max(zip(laws.shares(), failure_laws.WEIGHTS, strict=True)) == (pytest.approx(1.0, abs=0.05), name)


def test_survival_falls_from_one():
    laws = FailureLaws()
    assert laws.survival(0.0) == 1.0 and laws.survival(1e-6) == pytest.approx(1.0, abs=1e-3)
    ages = [60 * 2**i for i in range(14)]
    survivals = [laws.survival(age) for age in ages]
    assert survivals == sorted(survivals, reverse=True) and 0.2 < laws.survival(PRIOR_SECONDS) < 0.6


def test_plan_is_the_best_of_all_plans():
    """Of saves at any of its ages, by trying them all, for a law with few ages."""
    laws = FailureLaws()
    for life in (900.0, 1000.0, 1100.0, 1000.0):
        laws.failed(life)
    plan = planned(laws, 200.0, 0.0)
    ages = list(zip(plan.ages, plan.survivals, strict=True))[::4][:14]

    def best(at: int) -> float:
        begin = ages[at][0]
        later = (
            survival * max(age - begin - 200.0, 0.0) + best(n)
            for n, (age, survival) in enumerate(ages)
            if n > at
        )
        return max(later, default=0.0)

    assert plan.kept[0] >= best(0) > 0.9 * plan.kept[0]


def test_time_without_a_failure_lowers_the_hazard():
    calm, other = Adviser(), Adviser()
    calm.note_alive(40 * HOUR)
    assert calm.hazard(600) < other.hazard(600) / 2
    assert calm.interval(0) > other.interval(0)


@pytest.mark.parametrize("save", [1.0, 30.0, 120.0])
def test_the_usual_interval_until_there_is_evidence(save):
    """Before the first failure, and after one that is what the usual interval is the best for."""
    adviser = Adviser()
    adviser.note_save(save)
    for age in (0.0, USUAL_SECONDS + save, 2 * HOUR):
        assert adviser.interval(age) == USUAL_SECONDS
    between = USUAL_SECONDS**2 / (2 * save)
    if save > 1:
        adviser.note_failure(between)
        assert adviser.interval(0.0) == USUAL_SECONDS
    rng = random.Random(2)
    for _ in range(30):
        adviser.note_failure(rng.expovariate(20 / between))
    assert adviser.interval(0.0) < USUAL_SECONDS / 2


@pytest.mark.parametrize(
    "lives", [[], [2 * HOUR, 9 * HOUR, HOUR, 12 * HOUR, 5 * HOUR, 30 * HOUR, 4 * HOUR] * 2]
)
def test_last_save_ends_with_the_job(lives):
    """Known ends: no save is lost, and an extended job goes on saving."""
    adviser, save, age, ages = Adviser(), 60.0, 0.0, []
    adviser.note_save(save)
    for life in lives:
        adviser.note_failure(life)
    adviser.end = 6 * HOUR
    while (work := adviser.interval(age)) + save + age <= adviser.end + 1e-6:
        age += work + save
        ages.append(age)
    assert len(ages) > 5 and ages[-1] == pytest.approx(adviser.end)
    assert work > HOUR / 4, "none fits before the end"
    assert adviser.interval(adviser.end + 60) <= 2 * HOUR


def test_waste_where_the_end_is_known():
    law = Law("known limit", 60.0, limited, 6 * HOUR)
    found = compared(law, 3, (0, 10))
    assert found["adviser"][0] < 0.8 * found["30 min"][0]
    assert found["adviser"][1] <= 1.03 * found["oracle"][0]


@pytest.mark.parametrize("seconds", [0.0, -5.0, 1e-9, 1e12])
def test_extreme_times_are_harmless(seconds):
    adviser = Adviser()
    adviser.note_failure(seconds)
    adviser.note_alive(seconds)
    adviser.note_save(seconds)
    for age in (0.0, 1.0, 1e9):
        assert 10.0 <= adviser.interval(age) <= INTERVAL_SECONDS_MAX


def test_an_interval_is_known_at_every_age():
    """Also long after all that was expected."""
    adviser = Adviser()
    for _ in range(10):
        adviser.note_failure(HOUR)
    age = 0.0
    for _ in range(300):
        work = adviser.interval(age)
        assert 10.0 <= work <= INTERVAL_SECONDS_MAX
        age += work + 30.0
    assert age > 2 * HOUR


def test_waste_against_an_oracle_and_a_fixed_interval():
    """A short form of `python -m bench.trainer.checkpoint_adviser`, with the oracle of the exponential law in closed form."""
    best = best_interval(EXPONENTIAL.save, MEAN)
    found = compared(EXPONENTIAL, 6, (10, 40), policy=lambda _age: best)
    assert found["oracle"][0] == pytest.approx(1 - kept_at_intervals(best, 30.0), abs=2e-3)
    assert (
        found["adviser"][0] <= 1.03 * found["oracle"][0] and found["adviser"][1] <= 1.01 * found["oracle"][1]
    )
    assert found["adviser"][0] < found["30 min"][0]
    limit = compared(LIMIT, 4, (10,), policy=lambda _age: FIXED_SECONDS)
    assert limit["adviser"][0] < 0.35 * limit["30 min"][0]


def kept_at_intervals(work: float, save: float) -> float:
    """The share of time that is kept with failures at random: a geometric number of intervals before each."""
    lives = exp(-(work + save) / MEAN)
    return work * lives / (1 - lives) / MEAN


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
after = time.perf_counter_ns() / 1e9 - due._begin_ns / 1e9 - due._saved_age
interval = due._due_age - due._saved_age
due._due_age = 0.0
late = soon()
still = goodput.checkpoint_due()
goodput.checkpoint(2)
done = soon()
adviser = due.adviser
print(json.dumps([before, after, interval, late, still, done, adviser.failures, adviser.saves, adviser.save_seconds]))
sys.stdout.flush()
if sys.argv[1] == "1":
    os.kill(os.getpid(), 9)
"""


def run(directory, attempt: int) -> list:
    environment = {"GOODPUT_DIR": str(directory), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin"}
    return output(PROGRAM, environment, str(attempt))


def test_in_a_process_that_was_killed_and_started_again(tmp_path):
    """The second attempt knows of the failure of the first from its page, and each of its saves."""
    for attempt, failures in ((1, 0), (2, 1)):
        before, after, interval, late, still, done, known, saves, seconds = run(tmp_path, attempt)
        assert (before, late, still, done) == (False, True, True, False)
        assert 0 <= after < interval / 2 and interval >= 10 and known == failures and saves == 2
        assert 0.01 <= seconds < 0.5  # the mean of 20 ms and nothing


SAVES = """
import json, os, sys, time
import goodput
goodput.start(run="r", rank=0, world_size=1)
with goodput.step():
    pass
goodput.checkpoint_due()
from goodput import _checkpoint_due as due
answers = []
def now_due():
    due._due_age, due._next_ns = 0.0, 0
    return goodput.checkpoint_due()
for wait in (True, False):
    answers += [now_due(), goodput.checkpoint_due()]
    saving = goodput.checkpoint(1, wait=wait)
    if wait:
        del saving
    else:
        answers.append(goodput.checkpoint_due())
        saving.commit()
    answers.append(goodput.checkpoint_due())
print(json.dumps(answers))
"""


def test_no_second_save_is_due_right_after_one(tmp_path):
    """Nor one while one is written in the background."""
    environment = {"GOODPUT_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin"}
    found = output(SAVES, environment)
    assert found == [True, True, False, True, True, False, False]


ENDS = """
import json, os, sys, time
import goodput
goodput.start(run="r", rank=0, world_size=1)
given = json.loads(sys.argv[1])
goodput.checkpoint_due(ends=time.time() + given if isinstance(given, (int, float)) else given)
from goodput import _checkpoint_due as due
end = due.adviser.end if 0 < due.adviser.end < 1e9 else None
print(json.dumps([due._due_age, end, sorted(due._session.messages.written)]))
"""


@pytest.mark.parametrize(
    ("given", "slurm", "end"),
    [
        (1000, None, 1000),
        (1000, "1", 1000),
        (None, 900, 900),
        (None, "soon", None),
        ("soon", None, None),
        (-9, None, None),
    ],
)
def test_known_end_of_the_job(tmp_path, given, slurm, end):
    """Given or Slurm's; what is no time to come is ignored. Without a step, 3 s of saves are left as slack."""
    environment = {"GOODPUT_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin"}
    if slurm is not None:
        environment["SLURM_JOB_END_TIME"] = str(time.time() + slurm) if isinstance(slurm, int) else slurm
    due, known, warnings = output(ENDS, environment, json.dumps(given))
    assert len(warnings) == (given in ("soon", -9))
    assert all("want a time to come, in seconds since the epoch" in one for one in warnings)
    if end is None:
        assert (due, known) == (USUAL_SECONDS, None)
    else:
        assert end - 60 < known < end - 3 and due == pytest.approx(known - 30.0)


LIVES_GIVEN = """
import json, sys
import goodput
goodput.start(run="r", rank=0, world_size=1)
goodput.checkpoint_due(failures=eval(sys.argv[1]), ends=10**400)
from goodput import _checkpoint_due as due
print(json.dumps([due._due_age, due.adviser.failures, sorted(due._session.messages.written)]))
"""


@pytest.mark.parametrize(
    ("given", "failures"),
    [
        ("5", 0),
        ("'abc'", 0),
        ("[3600, float('nan'), -1, float('inf'), None, 10**400]", 1),
        ("None", 0),
        ("(3600.0 for _ in range(2))", 2),
    ],
)
def test_lives_that_are_none_are_named_and_left_out(tmp_path, given, failures):
    """A save is due all the same: a training that is never told to save loses everything with its first failure."""
    environment = {"GOODPUT_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin"}
    due, known, warnings = output(LIVES_GIVEN, environment, given)
    assert (0 < due < INTERVAL_SECONDS_MAX, known) == (True, failures)
    named = [one for one in warnings if "want the seconds that each attempt lived; ignored" in one]
    assert len(named) == (given not in ("None", "(3600.0 for _ in range(2))")), warnings


def test_call_that_does_not_work_says_so_once():
    warnings = []
    due = checkpoint_due.CheckpointDue(SimpleNamespace(warn=warnings.append, writer=object()))
    for _ in range(2):
        due._next_ns = 0
        assert due.is_due() is False
    [text] = warnings
    assert text.startswith("checkpoint_due does not work: AttributeError: ")


def test_lives_that_the_limit_ended_are_no_failures(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(time.time() - 2 * HOUR))
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 4 * HOUR))
    limits = checkpoint_due._limits(60.0, None)
    assert limits == pytest.approx((4 * HOUR + 60, 6 * HOUR), abs=5)
    lives = [6 * HOUR - 100, 6 * HOUR - 1000, 4 * HOUR, 5 * HOUR, HOUR]
    at_limit = [checkpoint_due._is_at_limit(life, limits) for life in lives]
    assert at_limit == [True, False, True, False, False]
    assert [checkpoint_due._is_at_limit(life, (50.0,)) for life in (44.0, 46.0)] == [False, True]
    assert checkpoint_due._informed({}, "", lives, limits).failures == 5, "those that are given are failures"
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert checkpoint_due._limits(60.0, None) == ()


def output(program: str, environment: dict[str, str], *arguments: str):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


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
