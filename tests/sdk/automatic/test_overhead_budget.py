"""The overhead budget: all phases are off when they cost too much, and on again when steps are longer."""

from __future__ import annotations

import pytest
from support.sdk.checks import check, inside

from goodput.account.text import render
from goodput.sdk.automatic.overhead_budget import CHECK_STEPS, DEFAULT_SHARE, MEASURES, budget_share

# A training loop as the patches see it, without a framework: `loop(steps)` spins `FORWARD` and `LOADER` ns a step.
LOOP = """
from goodput.rank_page import page
from goodput.sdk.automatic.step_detection import Automatic
auto = goodput._session.automatic = Automatic(goodput._session, goodput.phase)
recorder = auto.recorder
class Optimizer: pass
optimizer = Optimizer()
FORWARD, LOADER = 60_000, 20_000
def phase(which, ns):
    if not recorder.step_start_ns:
        auto.open_step()
    with which:
        spin(ns // 1000)
def loop(steps):
    for i in range(steps):
        phase(auto.loader, LOADER)
        phase(auto.forward, FORWARD)
        auto.training.fetches.add_samples(1)
        auto.optimizer_begins(optimizer)
        auto.optimizer_ends(optimizer)
def train_until_off():
    while not recorder.phases_off:
        loop(1)
        assert recorder.steps < 2000, "phases are never switched off"
def sampling():
    return dict(zip(page.SAMPLING, recorder.words[page.W_SAMPLING:page.W_SAMPLING + len(page.SAMPLING)].tolist()))
def totals():
    return recorder.words[page.W_TOTALS:page.W_TOTALS + page.PHASE_SLOTS].tolist()
goodput.start(run="budget")
"""
TINY = "0.000001"  # a budget that no phases fit into


@pytest.mark.parametrize(
    ("text", "share", "warns"),
    [
        ("", 0.02, False),
        ("0.01", 0.01, False),
        ("2%", 0.02, False),
        (" 1 ", 1.0, False),
        ("5e-324", 1e-9, False),
        ("0", DEFAULT_SHARE, True),
        ("-1", DEFAULT_SHARE, True),
        ("nan", DEFAULT_SHARE, True),
        ("much", DEFAULT_SHARE, True),
        ("1e999", DEFAULT_SHARE, True),
        ("150%", DEFAULT_SHARE, True),
    ],
)
def test_setting_is_a_share_of_step_time(text, share, warns):
    texts = []
    assert budget_share({"GOODPUT_BUDGET": text}, texts.append) == share
    assert bool(texts) is warns and all("GOODPUT_BUDGET" in each for each in texts)


def test_phases_stay_on_within_the_budget(sdk):
    extra = """
off = 0
for _ in range(1500):
    loop(1)
    off += recorder.phases_off
emit([off, sampling()["phases_measured"]])
"""
    outcome = sdk(LOOP + extra, GOODPUT_BUDGET="1")
    assert outcome.emitted[-1] == [0, 1]
    snapshot = check(outcome.snapshot())
    assert snapshot.steps_done == 1500 and snapshot.sampling["unmeasured_steps"] == 0
    assert "GOODPUT_BUDGET" not in outcome.errors


def test_over_the_budget_steps_have_no_phases(sdk):
    extra = """
train_until_off()
at_switch, before = recorder.steps, totals()
loop(1000)
after = totals()
emit([at_switch, sum(after[1:]) - sum(before[1:]), after[0] - before[0], sampling()])
"""
    outcome = sdk(LOOP + extra, GOODPUT_BUDGET=TINY)
    at_switch, in_phases_ns, in_none_ns, sampling = outcome.emitted[-1]
    assert in_phases_ns == 0 and in_none_ns >= 1000 * 80_000
    assert at_switch % CHECK_STEPS == 0 and at_switch >= MEASURES * CHECK_STEPS, "a step's boundary"
    assert sampling["phases_measured"] == 0 and sampling["budget_ppm"] == 1
    snapshot = check(outcome.snapshot())
    assert snapshot.steps_done == snapshot.samples == at_switch + 1000
    assert snapshot.sampling["unmeasured_steps"] == 1000
    for before, record in zip(snapshot.steps, snapshot.steps[1:], strict=False):
        spent = inside(record, before)
        assert record.number == before.number + 1
        assert (spent[1] and spent[3]) if record.number <= at_switch else sum(spent[1:]) == 0


def test_phases_come_back_when_steps_grow(sdk):
    extra = """
train_until_off()
cost_ns = auto.budget.phases_ns
# Just below, then well above the length at which the same phases cost half of the budget.
auto.budget.share = cost_ns / 1_000_000
loop(2 * 64)
assert recorder.phases_off, "within the budget, but not within half of it"
FORWARD, was = 4_000_000, recorder.steps
while recorder.phases_off:
    loop(1)
    assert recorder.steps < was + 128, "phases do not come back"
assert recorder.steps % 64 == 0
before, steps = totals(), recorder.steps
loop(20)
forward = page.PHASES.index("forward")
emit([totals()[forward] - before[forward], sampling()["phases_measured"]])
"""
    outcome = sdk(LOOP + extra, GOODPUT_BUDGET=TINY)
    forward_ns, measured = outcome.emitted[-1]
    assert forward_ns >= 20 * 4_000_000 and measured == 1
    snapshot = check(outcome.snapshot())
    measured_steps = [
        r for b, r in zip(snapshot.steps, snapshot.steps[1:], strict=False) if sum(inside(r, b)[1:])
    ]
    assert len(measured_steps) >= 20
    assert 0 < snapshot.sampling["unmeasured_steps"] < snapshot.steps_done


def test_switch_is_logged_once(sdk):
    extra = """
for _ in range(3):
    train_until_off()
    auto.budget.switch_phases(True)
    loop(1)
"""
    outcome = sdk(LOOP.replace("recorder.steps < 2000", "recorder.steps < 6000") + extra, GOODPUT_BUDGET=TINY)
    assert outcome.errors.count("GOODPUT_BUDGET") == 1
    assert not any(outcome.snapshot().drops.values()), "it is no error"


def test_report_and_coverage_count_unmeasured_steps(sdk):
    extra = """
train_until_off()
loop(960)
report = goodput.report()
emit([str(report), report.account, recorder.steps])
"""
    text, account, steps = sdk(LOOP + extra, GOODPUT_BUDGET=TINY).emitted[-1]
    assert "steps were timed without phases" in " ".join(text.split()) and "GOODPUT_BUDGET" in text
    assert account["coverage"]["phases"] == pytest.approx(1 - 960 / steps, abs=64 / steps)
    assert " ".join(render(account, full=True).split()).count("off in the others (GOODPUT_BUDGET)") == 1


def test_open_phase_delays_the_switch(sdk):
    extra = """
with goodput.phase("mine"):
    loop(700)
    assert not recorder.phases_off
train_until_off()
with goodput.phase("mine"):
    auto.budget.share = 1.0
    loop(200)
    assert recorder.phases_off and recorder.depth == 1
loop(200)
assert not recorder.phases_off and recorder.depth == 0
"""
    snapshot = check(sdk(LOOP + extra, GOODPUT_BUDGET=TINY).snapshot())
    assert not any(snapshot.drops.values()), snapshot.drops


@pytest.mark.parametrize("end", ["auto.end()", "auto.remove()", "auto.use_manual_steps()"])
def test_phases_return_when_automatic_measuring_ends(sdk, end):
    """Also while one is open: what is left of it is charged, its length is not known."""
    extra = f"""
train_until_off()
before = totals()
mine = goodput.phase("mine")
with mine:
    {end}
    assert not recorder.phases_off
    spin(2000)
with mine:
    spin(2000)
assert recorder.depth == 0
histogram = recorder.words[mine.histogram:mine.histogram + page.HISTOGRAM_WORDS].tolist()
emit([totals()[mine.index], sum(histogram)])
"""
    outcome = sdk(LOOP + extra, GOODPUT_BUDGET=TINY)
    spent_ns, entries = outcome.emitted[-1]
    assert spent_ns >= 4_000_000 and entries == 1
    check(outcome.snapshot())


def test_phases_exited_out_of_order_are_counted(sdk):
    extra = """
train_until_off()
auto.h2d.__exit__(None, None, None)
outer, inner = goodput.phase("a"), goodput.phase("b")
outer.__enter__(); inner.__enter__()
outer.__exit__(None, None, None)
inner.__exit__(None, None, None)
assert recorder.depth == 0 and recorder.current == page.W_TOTALS
loop(10)
"""
    snapshot = check(sdk(LOOP + extra, GOODPUT_BUDGET=TINY).snapshot())
    assert snapshot.drops["phase"] == 2


def test_device_clock_is_parked_before_phases(sdk):
    extra = """
class DeviceClock:
    cost_ns = 0
    def __call__(self, word): self.cost_ns += 1000
    begin = end = open = finish = __call__
clock = recorder.device = DeviceClock()
parked = 0
while recorder.device is not None:
    loop(1)
assert not recorder.phases_off and auto.budget.parked is clock
train_until_off()
auto.budget.share = 1.0
loop(64)
assert not recorder.phases_off and recorder.device is None
loop(64 * 6)
assert recorder.device is clock and auto.budget.parked is None
"""
    check(sdk(LOOP + extra, GOODPUT_BUDGET=TINY).snapshot())


def test_cost_is_counted_and_only_grows(sdk):
    extra = """
costs = []
for _ in range(40):
    loop(100)
    costs.append(recorder.words[page.W_COST])
assert costs == sorted(costs) and costs[-1] > costs[0] > 0
emit(costs[-1] / recorder.steps)
"""
    outcome = sdk(LOOP + extra, GOODPUT_BUDGET="1")
    per_step_ns = outcome.emitted[-1]
    assert 100 < per_step_ns < 200_000


def test_cost_of_a_hook_excludes_its_function(sdk):
    extra = """
from goodput.sdk.automatic.hooks import ZERO_GRAD, hook
from goodput.sdk.recorder.hot_path import extension
OURS, THEIRS = 300, 20_000  # microseconds
def theirs():
    spin(THEIRS)
def slow():
    raise AssertionError("the case is common")
timed = hook(ZERO_GRAD, auto.training, auto.forward, theirs, slow, lambda: spin(OURS) or True)
if extension is not None:
    loop(3)
    auto.open_step()
    found = []
    for measuring in (True, False):
        recorder.costs.measure(measuring)
        costs = []
        for _ in range(5):  # The least of them: the process may lose its core in between.
            recorder.costs.measure(measuring)
            timed()
            costs.append(recorder.costs.own_ns)
        found.append(min(costs) if measuring else max(costs))
    recorder.costs.measure(False)
    emit(found)
else:
    emit(None)
"""
    found = sdk(LOOP + extra, GOODPUT_BUDGET="1").emitted[-1]
    if found is None:
        pytest.skip("the recorder in Python measures its boundaries alone")
    measured, unmeasured = found
    assert 300_000 <= measured < 10_000_000 and unmeasured == 0
