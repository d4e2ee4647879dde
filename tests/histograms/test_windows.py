"""Discrete and sliding windows against brute force over the list of steps."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput.histograms.windows import PHASES_MAX, DiscreteWindows, SlidingWindow

SECOND = 10**9


def feed(window, steps):
    for end_ns, length_ns, samples, phases in steps:
        window.add(end_ns, length_ns, samples, phases)
    return window


def training(seed, count, mean_seconds=0.3):
    """Steps one after another, of uneven length and with pauses between some."""
    rng, steps, now_ns = random.Random(seed), [], 7 * SECOND
    for _ in range(count):
        length_ns = round(rng.lognormvariate(math.log(mean_seconds), 0.4) * SECOND)
        now_ns += length_ns + (round(rng.expovariate(1) * SECOND) if rng.random() < 0.1 else 0)
        phases = {"loader": rng.randrange(length_ns // 3 + 1), "forward": length_ns // 4}
        if rng.random() < 0.3:
            phases["checkpoint"] = rng.randrange(length_ns // 4 + 1)
        steps.append((now_ns, length_ns, rng.randrange(512), phases))
    return steps


def durations_expected(lengths_ns):
    seconds = np.array(lengths_ns) / SECOND
    quantiles = [
        float(np.float16(np.quantile(seconds, q, method="inverted_cdf"))) if lengths_ns else None
        for q in (0.5, 0.95, 0.99, 0.999)
    ]
    return (len(lengths_ns), sum(lengths_ns), *quantiles)


def check(report, steps, now_ns):
    """Compare a report with the steps of its interval, one by one."""
    inside = [step for step in steps if report.start_ns < step[0] <= report.end_ns]
    assert report.steps == len(inside)
    assert report.samples == sum(step[2] for step in inside)
    assert tuple(vars(report.step).values()) == durations_expected([step[1] for step in inside])
    names = {name for step in inside for name in step[3]}
    assert list(report.phases) == sorted(names)
    for name, phase in report.phases.items():
        expected = durations_expected([step[3][name] for step in inside if name in step[3]])
        assert tuple(vars(phase).values()) == expected
    began_ns = min(end_ns - length_ns for end_ns, length_ns, _, _ in steps)
    now_ns = max(now_ns, *(step[0] for step in steps), 0)
    observed_ns = max(min(report.end_ns, now_ns) - max(report.start_ns, began_ns), 0)
    assert report.observed_ns == observed_ns
    assert report.seconds == observed_ns / SECOND
    if observed_ns:
        assert report.steps_per_second == pytest.approx(len(inside) / report.seconds)
        assert report.samples_per_second == pytest.approx(report.samples / report.seconds)
        assert report.busy_ratio == pytest.approx(sum(step[1] for step in inside) / observed_ns)
    else:
        assert report.steps_per_second is report.samples_per_second is report.busy_ratio is None


# Discrete windows


@pytest.mark.parametrize("seed", range(4))
def test_discrete_windows_are_brute_force(seed):
    steps = training(seed, 600)
    windows = feed(DiscreteWindows(10, keep=5), steps)
    now_ns = steps[-1][0] + 3 * SECOND
    reports = windows.reports(now_ns)
    assert len(reports) == 5
    for report in reports:
        check(report, steps, now_ns)
        assert report.start_ns % (10 * SECOND) == 0 and report.end_ns - report.start_ns == 10 * SECOND
        assert report.complete == (report is not reports[-1])
    assert [report.start_ns for report in reports[1:]] == [report.end_ns for report in reports[:-1]]
    assert reports[-1].start_ns < now_ns <= reports[-1].end_ns
    assert windows.dropped == 0


@pytest.mark.parametrize("make", [lambda: DiscreteWindows(10, keep=40), lambda: SlidingWindow(60, 12)])
def test_the_order_of_arrival_does_not_matter(make):
    steps = training(5, 120)
    in_order, now_ns = feed(make(), steps), steps[-1][0] + 1
    late = [step for i, step in enumerate(steps) if i % 3] + steps[::3]
    shuffled = random.Random(6).sample(steps, len(steps))
    for order in (late, shuffled, steps[::-1]):
        window = feed(make(), order)
        if isinstance(window, DiscreteWindows):
            assert window.reports(now_ns) == in_order.reports(now_ns)
            assert window.burst(now_ns) == in_order.burst(now_ns)
        else:
            assert window.report(now_ns) == in_order.report(now_ns)


def test_discrete_windows_count_the_steps_that_come_too_late():
    windows = DiscreteWindows(10, keep=3)
    windows.add(95 * SECOND, SECOND)
    windows.add(70 * SECOND + 1, SECOND)  # The oldest window kept is (70, 80].
    windows.add(70 * SECOND, SECOND, 9, {"loader": 1})
    windows.add(5 * SECOND, SECOND)
    assert windows.dropped == 2
    reports = windows.reports(95 * SECOND)
    assert [(report.start_ns // SECOND, report.steps) for report in reports] == [(70, 1), (80, 0), (90, 1)]
    assert all(report.samples == 0 and report.phases == {} for report in reports)


def test_a_step_belongs_to_the_window_in_which_it_ended():
    windows = DiscreteWindows(10)
    windows.add(10 * SECOND, 4 * SECOND)
    windows.add(25 * SECOND, 15 * SECOND)
    first, second, third = windows.reports(30 * SECOND)
    assert (first.steps, first.seconds, first.busy_ratio) == (1, 4.0, 1.0)
    assert (second.steps, second.seconds, second.busy_ratio) == (0, 10.0, 0.0)
    assert (third.steps, third.seconds, third.busy_ratio) == (1, 10.0, 1.5)
    assert (first.complete, second.complete, third.complete) == (False, True, True)


def test_rates_are_over_what_was_observed():
    windows = DiscreteWindows(10)
    for i in range(1, 7):
        windows.add(18 * SECOND + i * SECOND, SECOND // 2, 100)
    first, second = windows.reports(24 * SECOND)
    assert (first.steps, first.seconds) == (2, 1.5)  # The first step began at 18.5 s.
    assert (second.steps, second.seconds, second.steps_per_second) == (4, 4.0, 1.0)
    assert (second.samples_per_second, second.busy_ratio) == (100.0, 0.5)
    later = windows.reports(28 * SECOND)[-1]
    assert (later.steps_per_second, later.busy_ratio) == (0.5, 0.25)


def test_windows_without_steps_are_reported_as_zero_not_left_out():
    windows = DiscreteWindows(1, keep=5)
    windows.add(3 * SECOND, SECOND)
    assert [report.steps for report in windows.reports(6 * SECOND)] == [1, 0, 0, 0]
    assert [report.steps for report in windows.reports(100 * SECOND)] == [0] * 5
    assert windows.reports(100 * SECOND)[-1].step.p99_seconds is None
    assert windows.reports(100 * SECOND)[-1].steps_per_second == 0.0


def test_a_report_from_before_the_newest_step_reaches_to_that_step():
    windows = feed(DiscreteWindows(10), training(1, 50))
    end_ns = training(1, 50)[-1][0]
    assert windows.reports(0) == windows.reports(end_ns)
    sliding = feed(SlidingWindow(10), training(1, 50))
    assert sliding.report(0) == sliding.report(end_ns)
    assert sliding.report(0).end_ns == end_ns


def test_bursts_are_the_largest_over_the_mean():
    windows = DiscreteWindows(10, keep=4)
    assert windows.burst(0) is None
    for start, count in ((0, 50), (10, 10), (20, 40), (30, 0), (40, 10), (50, 99)):
        for i in range(count):
            windows.add((start + 1) * SECOND + i, 1)
    # Of the four kept, (50, 60] is under way at 55 s, so (20, 30], (30, 40] and (40, 50] count.
    assert windows.burst(55 * SECOND) == 40 / (50 / 3)
    assert windows.burst(60 * SECOND) == 99 / (149 / 4)
    assert windows.burst(200 * SECOND) is None


def test_even_steps_are_no_burst():
    windows = DiscreteWindows(5)
    for i in range(1, 101):
        windows.add(i * SECOND, SECOND)
    assert windows.burst(100 * SECOND) == 1.0
    assert {report.busy_ratio for report in windows.reports(100 * SECOND)} == {1.0}


# Sliding window


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("seconds", "resolution"), [(30, 240), (30, 7), (0.5, 10), (20, 1)])
def test_sliding_window_is_brute_force_at_every_moment(seed, seconds, resolution):
    steps = training(seed, 250)
    window = SlidingWindow(seconds, resolution)
    window_ns = round(seconds * SECOND)
    span_ns = -(-window_ns // resolution)
    for i, step in enumerate(steps):
        window.add(*step)
        if i % 5 == 0:
            now_ns = step[0] + i * SECOND // 100
            report = window.report(now_ns)
            check(report, steps[: i + 1], now_ns)
            assert report.end_ns == now_ns
            assert max(now_ns - window_ns, 0) <= report.start_ns < max(now_ns - window_ns, 0) + span_ns
    assert window.dropped == 0


def test_sliding_window_forgets_by_time_alone():
    window = SlidingWindow(60, resolution=60)
    window.add(100 * SECOND, SECOND, 8, {"loader": SECOND // 2})
    assert window.report(159 * SECOND).steps == 1
    assert window.report(160 * SECOND).steps == 0, "a step is out once it ended a whole window ago"
    assert window.report(160 * SECOND).phases == {}
    assert window.report(160 * SECOND).busy_ratio == 0.0
    assert window.report(130 * SECOND).steps == 1, "reporting changes nothing"


def test_sliding_window_counts_the_steps_that_come_too_late():
    window = SlidingWindow(10, resolution=10)
    window.add(100 * SECOND, SECOND)
    window.add(90 * SECOND + 1, SECOND)
    window.add(90 * SECOND, SECOND)
    assert (window.report(100 * SECOND).steps, window.dropped) == (2, 1)


def test_a_window_that_began_late_is_not_diluted():
    window = SlidingWindow(300)
    for i in range(1, 11):
        window.add(1000 * SECOND + i * SECOND, SECOND)
    report = window.report(1010 * SECOND)
    assert (report.seconds, report.steps_per_second, report.busy_ratio) == (10.0, 1.0, 1.0)
    assert not report.complete
    assert window.report(2000 * SECOND).complete


# Both


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(0, 40),
            st.integers(0, 9),
            st.dictionaries(st.sampled_from(["loader", "forward"]), st.integers(0, 9)),
        ),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(1, 400),
)
def test_any_steps_in_any_order(steps, span, keep, now_ns):
    """In nanoseconds, so that ends, boundaries and now coincide often."""
    discrete = feed(DiscreteWindows(span / SECOND, keep), steps)
    sliding = feed(SlidingWindow(span / SECOND, keep), steps)
    now = max([now_ns, *(end_ns for end_ns, _, _, _ in steps)])
    # Time 0 lies in the first window; brute force takes a start as excluded, so lift such steps by a hair.
    lifted = [(end_ns or 0.5, length_ns, *rest) for end_ns, length_ns, *rest in steps]
    for report in [*discrete.reports(now_ns), sliding.report(now_ns)]:
        inside = [step for step in lifted if report.start_ns < step[0] <= report.end_ns]
        assert (report.steps, report.samples) == (len(inside), sum(step[2] for step in inside))
        assert report.step.sum_ns == sum(step[1] for step in inside)
        phases = {name: phase.sum_ns for name, phase in report.phases.items()}
        assert phases == {
            name: sum(step[3].get(name, 0) for step in inside)
            for name in {name for step in inside for name in step[3]}
        }
        assert 0 <= report.observed_ns <= report.end_ns - report.start_ns
    reports = discrete.reports(now_ns)
    assert reports[-1].start_ns < now <= reports[-1].end_ns
    kept = [step for step in lifted if step[0] > reports[-1].end_ns - keep * span]
    assert sum(report.steps for report in reports) == len(kept)
    assert len(reports) <= keep and reports[0].start_ns >= 0


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 400), st.integers(0, 9)), max_size=40),
    st.integers(1, 30),
    st.integers(1, 5),
)
def test_count_is_add_without_the_checks(steps, span, keep):
    for make in (lambda: DiscreteWindows(span / SECOND, keep), lambda: SlidingWindow(span / SECOND, keep)):
        checked, quick = make(), make()
        for step in steps:
            checked.add(*step)
            quick.count(*step)
        assert quick.dropped == checked.dropped
        for now_ns in (0, 150, 400):
            if isinstance(checked, DiscreteWindows):
                assert quick.reports(now_ns) == checked.reports(now_ns)
            else:
                assert quick.report(now_ns) == checked.report(now_ns)


@pytest.mark.parametrize("make", [lambda: DiscreteWindows(1, keep=10), lambda: SlidingWindow(10, 10)])
def test_memory_is_bounded_and_what_is_refused_is_counted(make):
    window = make()
    for i in range(1, 501):
        window.add(i * SECOND, SECOND, 1, {f"phase {i % 50}": 1, "loader": 2})
    assert len(window._tallies) <= 10
    phases = {name for tally in window._tallies.values() for name in tally.phases}
    assert "loader" in phases and len(window._names) == PHASES_MAX
    assert window.dropped_phases == 500 - 10 * (PHASES_MAX - 1)
    assert window.dropped == 0


@pytest.mark.parametrize("make", [lambda: DiscreteWindows(10), lambda: SlidingWindow(10)])
@pytest.mark.parametrize(
    ("step", "message"),
    [
        ((-1, 1), "end_ns must be an integer from 0 on, not -1"),
        ((1.0, 1), "end_ns must be"),
        ((1, -1), "length_ns must be"),
        ((1, True), "length_ns must be"),
        ((1, 1, None), "samples must be"),
        ((1, 1, 1, {"loader": 1, "forward": -2}), "forward must be an integer from 0 on, not -2"),
        ((1, 1, 1, {7: 1}), "the name of a phase must be text, not 7"),
    ],
)
def test_a_wrong_step_is_refused_whole(make, step, message):
    window = make()
    with pytest.raises(ValueError, match=message):
        window.add(*step)
    assert (window._tallies, window._since_ns, window._names, window.dropped) == ({}, None, set(), 0)


def test_nothing_is_reported_before_the_first_step():
    assert DiscreteWindows(10).reports(50 * SECOND) == []
    report = SlidingWindow(10).report(50 * SECOND)
    assert (report.steps, report.observed_ns, report.busy_ratio, report.phases) == (0, 0, None, {})


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan, 1e-10])
def test_windows_need_a_length(seconds):
    for make in (DiscreteWindows, SlidingWindow):
        with pytest.raises(ValueError, match="at least 1e-9"):
            make(seconds)


@pytest.mark.parametrize("count", [0, -1, 1.5, None])
def test_windows_need_a_bound(count):
    with pytest.raises(ValueError, match="keep must be an integer from 1 on"):
        DiscreteWindows(1, keep=count)
    with pytest.raises(ValueError, match="resolution must be an integer from 1 on"):
        SlidingWindow(1, resolution=count)
