"""`goodput.loader`: any iterable's waits, without steps of its own."""

from __future__ import annotations

import pytest
from support.sdk.checks import check

WAITS = """
def slow(count):
    for i in range(count):
        time.sleep(0.02)
        yield i
"""


def test_waits_are_the_loaders_and_no_steps_are_made(sdk):
    outcome = sdk(
        WAITS
        + """
seen, worked, began = [], 0, time.perf_counter_ns()
for item in goodput.loader(slow(5)):
    at = time.perf_counter_ns()
    seen.append(item)
    work()
    worked += time.perf_counter_ns() - at
emit(seen)
emit(time.perf_counter_ns() - began - worked)
"""
    )
    snapshot = check(outcome.snapshot())
    spent = dict(zip(snapshot.phases, snapshot.totals, strict=True))
    seen, waited_ns = outcome.emitted
    assert seen == [0, 1, 2, 3, 4] and snapshot.steps_done == 0
    assert 0.1e9 <= spent["loader"] <= waited_ns


def test_loader_inside_manual_steps_is_part_of_them(sdk):
    outcome = sdk(
        WAITS
        + """
items = iter(goodput.loader(slow(4)))
for _ in range(2):
    with goodput.step():
        next(items), next(items)
"""
    )
    snapshot = check(outcome.snapshot())
    assert snapshot.steps_done == 2
    assert sum(snapshot.steps[-1].totals) - sum(snapshot.steps[-1].outside) >= 0.08e9


@pytest.mark.parametrize("evaluating", [False, True])
def test_fetch_opens_an_automatic_step_except_in_evaluation(sdk, evaluating):
    outcome = sdk(
        WAITS
        + f"""
from goodput.sdk.automatic.step_detection import Automatic
auto = goodput._session.automatic = Automatic(goodput._session, goodput.phase)
goodput.start(run="r")
if {evaluating}:
    auto.start_evaluation()
began = time.perf_counter_ns()
items = iter(goodput.loader(slow(2)))
made_ns = time.perf_counter_ns() - began
for item in items:
    emit(bool(goodput._session.recorder.step_start_ns))
emit(made_ns)
"""
    )
    spent = dict(zip(outcome.snapshot().phases, outcome.snapshot().totals, strict=True))
    *opened, made_ns = outcome.emitted
    assert opened == [not evaluating] * 2
    assert spent["evaluation" if evaluating else "loader"] >= 0.04e9
    # Making the iterator is a little of the loader's in any case.
    assert spent["loader" if evaluating else "evaluation"] <= made_ns


def test_iterable_error_passes_and_phase_is_closed(sdk):
    outcome = sdk(
        """
def broken():
    yield 1
    raise ValueError("mine")
try:
    for item in goodput.loader(broken()):
        pass
except ValueError as error:
    emit(str(error))
emit(goodput._session.recorder.depth)
"""
    )
    assert outcome.emitted == ["mine", 0]
