"""Sliding and discrete windows against brute force over the list of steps."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput.histograms.windows import StepSpans, burst

SECOND = 10**9


def feed(spans, steps):
    for step in steps:
        spans.add(*step)
    return spans


def training(seed, count, mean_seconds=0.3):
    """Steps one after another, of uneven length and with pauses between some."""
    rng, steps, now_ns = random.Random(seed), [], 7 * SECOND
    for _ in range(count):
        length_ns = round(rng.lognormvariate(math.log(mean_seconds), 0.4) * SECOND)
        now_ns += length_ns + (round(rng.expovariate(1) * SECOND) if rng.random() < 0.1 else 0)
        steps.append((now_ns, length_ns, rng.randrange(512)))
    return steps


def values(window) -> tuple:
    return (window.start_ns, window.end_ns, window.observed_ns, window.samples, window.lengths.to_pairs())


def check(window, steps, now_ns):
    """Compare a window with the steps of its interval, one by one."""
    inside = [step for step in steps if window.start_ns < step[0] <= window.end_ns]
    lengths_ns = [step[1] for step in inside]
    assert (window.steps, window.samples) == (len(inside), sum(step[2] for step in inside))
    assert window.lengths.sum_ns == sum(lengths_ns)
    quantiles = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    assert window.step_seconds() == {
        name: float(np.float16(np.quantile(np.array(lengths_ns) / SECOND, q, method="inverted_cdf")))
        if inside
        else None
        for name, q in quantiles.items()
    }
    began_ns = min(end_ns - length_ns for end_ns, length_ns, _ in steps)
    now_ns = max(now_ns, *(step[0] for step in steps), 0)
    observed_ns = max(min(window.end_ns, now_ns) - max(window.start_ns, began_ns), 0)
    assert window.observed_ns == observed_ns
    if observed_ns:
        assert window.steps_per_second == pytest.approx(len(inside) * SECOND / observed_ns)
        assert window.samples_per_second == pytest.approx(window.samples * SECOND / observed_ns)
        assert window.busy_ratio == pytest.approx(sum(lengths_ns) / observed_ns)
    else:
        assert window.steps_per_second is window.samples_per_second is window.busy_ratio is None


@pytest.mark.parametrize("seed", range(4))
def test_discrete_windows_match_brute_force(seed):
    steps = training(seed, 600)
    spans = feed(StepSpans(SECOND * 5 // 4, keep=40), steps)
    now_ns = steps[-1][0] + 3 * SECOND
    windows = spans.discrete(now_ns, 8, 5)
    assert len(windows) == 5 and spans.dropped == 0
    for window in windows:
        check(window, steps, now_ns)
        assert window.start_ns % (10 * SECOND) == 0 and window.end_ns - window.start_ns == 10 * SECOND
        assert window.complete == (window is not windows[-1])
    assert [window.start_ns for window in windows[1:]] == [window.end_ns for window in windows[:-1]]
    assert windows[-1].start_ns < now_ns <= windows[-1].end_ns


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("span_ns", "keep"), [(SECOND // 8, 240), (4 * SECOND, 7), (SECOND // 20, 10), (20 * SECOND, 1)]
)
def test_sliding_window_matches_brute_force(seed, span_ns, keep):
    steps, spans = training(seed, 250), StepSpans(span_ns, keep)
    for i, step in enumerate(steps):
        spans.add(*step)
        if i % 5 == 0:
            now_ns = step[0] + i * SECOND // 100
            window, since_ns = spans.sliding(now_ns), max(now_ns - keep * span_ns, 0)
            check(window, steps[: i + 1], now_ns)
            assert window.end_ns == now_ns and since_ns <= window.start_ns < since_ns + span_ns
    assert spans.dropped == 0


def test_order_of_arrival_does_not_matter():
    steps = training(5, 120)
    in_order, now_ns = feed(StepSpans(SECOND, 100), steps), steps[-1][0] + 1
    late = [step for i, step in enumerate(steps) if i % 3] + steps[::3]
    for order in (late, random.Random(6).sample(steps, len(steps)), steps[::-1]):
        spans = feed(StepSpans(SECOND, 100), order)
        assert values(spans.sliding(now_ns)) == values(in_order.sliding(now_ns))
        assert [*map(values, spans.discrete(now_ns, 10, 9))] == [
            *map(values, in_order.discrete(now_ns, 10, 9))
        ]


def test_late_steps_are_counted_as_dropped():
    spans = StepSpans(SECOND, keep=10)
    for end_ns in (100 * SECOND, 90 * SECOND + 1, 90 * SECOND):
        spans.add(end_ns, SECOND)
    assert (spans.sliding(100 * SECOND).steps, spans.dropped) == (2, 1)


def test_step_belongs_to_the_window_it_ended_in():
    spans = StepSpans(SECOND, 60)
    spans.add(10 * SECOND, 4 * SECOND)
    spans.add(25 * SECOND, 15 * SECOND)
    first, second, third = spans.discrete(30 * SECOND, 10, 60)
    assert (first.steps, first.observed_ns, first.busy_ratio) == (1, 4 * SECOND, 1.0)
    assert (second.steps, second.observed_ns, second.busy_ratio) == (0, 10 * SECOND, 0.0)
    assert (third.steps, third.observed_ns, third.busy_ratio) == (1, 10 * SECOND, 1.5)
    assert (first.complete, second.complete, third.complete) == (False, True, True)


def test_windows_without_steps_are_reported_as_zero():
    spans = StepSpans(SECOND, keep=5)
    spans.add(3 * SECOND, SECOND)
    assert [window.steps for window in spans.discrete(6 * SECOND, 1, 5)] == [1, 0, 0, 0]
    windows = spans.discrete(100 * SECOND, 1, 5)
    assert [window.steps for window in windows] == [0] * 5
    assert windows[-1].step_seconds()["p99"] is None and windows[-1].steps_per_second == 0.0


def test_window_before_the_newest_step_reaches_to_it():
    steps = training(1, 50)
    spans, end_ns = feed(StepSpans(SECOND, 10), steps), steps[-1][0]
    assert values(spans.sliding(0)) == values(spans.sliding(end_ns)) and spans.sliding(0).end_ns == end_ns
    assert [*map(values, spans.discrete(0, 2, 5))] == [*map(values, spans.discrete(end_ns, 2, 5))]


def test_sliding_window_forgets_by_time_alone():
    spans = StepSpans(SECOND, keep=60)
    spans.add(100 * SECOND, SECOND, 8)
    assert spans.sliding(159 * SECOND).steps == 1
    assert spans.sliding(160 * SECOND).steps == 0, "a step is out once it ended a whole window ago"
    assert spans.sliding(160 * SECOND).busy_ratio == 0.0
    assert spans.sliding(130 * SECOND).steps == 1, "reading changes nothing"


def test_sliding_window_that_began_late_is_not_diluted():
    spans = StepSpans(SECOND, 300)
    for i in range(1, 11):
        spans.add(1000 * SECOND + i * SECOND, SECOND)
    window = spans.sliding(1010 * SECOND)
    assert (window.observed_ns, window.steps_per_second, window.busy_ratio) == (10 * SECOND, 1.0, 1.0)
    assert not window.complete and spans.sliding(2000 * SECOND).complete


def test_burst_is_the_largest_over_the_mean():
    spans = StepSpans(10 * SECOND, keep=4)
    for start, count in ((0, 50), (10, 10), (20, 40), (30, 0), (40, 10), (50, 99)):
        for i in range(count):
            spans.add((start + 1) * SECOND + i, 1)
    # Of the four kept, (50, 60] is under way at 55 s, so (20, 30], (30, 40] and (40, 50] count.
    assert burst(spans.discrete(55 * SECOND, 1, 4)) == 40 / (50 / 3)
    assert burst(spans.discrete(60 * SECOND, 1, 4)) == 99 / (149 / 4)
    assert burst(spans.discrete(200 * SECOND, 1, 4)) is None and burst([]) is None


def test_even_steps_are_no_burst():
    spans = StepSpans(5 * SECOND, 60)
    for i in range(1, 101):
        spans.add(i * SECOND, SECOND)
    windows = spans.discrete(100 * SECOND, 1, 60)
    assert burst(windows) == 1.0 and {window.busy_ratio for window in windows} == {1.0}


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=25),
    st.integers(1, 60),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 400),
)
def test_any_steps_in_any_order(steps, span, width, count, now_ns):
    """In nanoseconds, so that ends, boundaries and now coincide often."""
    spans = feed(StepSpans(span, width * count), steps)
    discrete, sliding = spans.discrete(now_ns, width, count), spans.sliding(now_ns)
    now = max([now_ns, *(end_ns for end_ns, _, _ in steps)])
    # Time 0 lies in the first window; brute force takes a start as excluded, so lift such steps by a hair.
    lifted = [(end_ns or 0.5, *rest) for end_ns, *rest in steps]
    for window in [*discrete, sliding]:
        inside = [step for step in lifted if window.start_ns < step[0] <= window.end_ns]
        assert (window.steps, window.samples) == (len(inside), sum(step[2] for step in inside))
        assert window.lengths.sum_ns == sum(step[1] for step in inside)
        assert 0 <= window.observed_ns <= window.end_ns - window.start_ns
    assert discrete[-1].start_ns < now <= discrete[-1].end_ns
    kept = [step for step in lifted if step[0] > discrete[-1].end_ns - width * count * span]
    assert sum(window.steps for window in discrete) == len(kept)
    assert len(discrete) <= count and discrete[0].start_ns >= 0


def test_memory_is_bounded():
    spans = StepSpans(SECOND, keep=10)
    for i in range(1, 501):
        spans.add(i * SECOND, SECOND)
    assert len(spans._spans) <= 10 and spans.dropped == 0


def test_nothing_is_observed_before_the_first_step():
    spans = StepSpans(SECOND, 10)
    window = spans.sliding(50 * SECOND)
    assert spans.discrete(50 * SECOND, 1, 10) == []
    assert (window.steps, window.observed_ns, window.busy_ratio) == (0, 0, None)
