"""`goodput.window()` against a brute-force oracle over the true steps, and where nothing is measured."""

from __future__ import annotations

import random
import re
import tracemalloc
from types import SimpleNamespace

import pytest
from support.paths import ROOT

from goodput.account.states import PHASE_STATES
from goodput.histograms.histogram import Histogram
from goodput.rank_page import page
from goodput.sdk.recorder.messages import four_digits
from goodput.sdk.recorder.recorder import Recorder
from goodput.sdk.reports import window_rows
from goodput.sdk.reports.window import Window, Windows

SECOND = 1_000_000_000
START_NS = 5 * SECOND
PRODUCTIVE = ("forward", "backward", "optimizer", "mine")


class Rank:
    """A recorder whose clock is set by hand, what it truly did, and its windows."""

    def __init__(self, monkeypatch, states=None):
        self.now_ns = START_NS
        self.states = states if states is not None else {"mine": "productive", "other": "loader"}
        self.names = [*page.PHASES, *self.states]
        self.warnings = []
        self.recorder = Recorder()
        self.open()
        session = SimpleNamespace(
            recorder=self.recorder, phases=SimpleNamespace(states=self.states), warn=self.warnings.append
        )
        self.windows = Windows(session)
        monkeypatch.setattr("goodput.sdk.reports.window.perf_counter_ns", lambda: self.now_ns)

    def open(self):
        """A page, as at the first start or when an attempt follows."""
        self.recorder.open(page.private_words(), self.now_ns)
        self.recorder.used = list(range(len(self.names)))
        self.recorder.columns = len(self.names)
        self.steps, self.totals, self.begun_ns = [], dict.fromkeys(self.names, 0), self.now_ns

    def spend(self, name, ns):
        self.recorder.current = page.W_TOTALS + self.names.index(name)
        self.now_ns += ns
        self.totals[name] += ns
        self.recorder.charge(self.now_ns)

    def step(self, inside, outside=(), samples=0):
        """One step after some time outside; both are pairs of a phase and nanoseconds."""
        for name, ns in outside:
            self.spend(name, ns)
        start_ns = self.recorder.end_gap(self.now_ns)
        before = dict(self.totals)
        assert self.recorder.begin_step(start_ns, None, samples)
        for name, ns in inside:
            self.spend(name, ns)
        self.recorder.end_step(self.now_ns)
        self.steps.append(
            SimpleNamespace(
                number=len(self.steps) + 1,
                start_ns=start_ns,
                end_ns=self.now_ns,
                samples=samples,
                inside={name: self.totals[name] - before[name] for name in self.names},
                before=before,
                totals=dict(self.totals),
            )
        )

    def window(self, seconds=60):
        found = self.windows.window(seconds)
        assert not self.warnings, self.warnings
        return found


def quantiles(durations_ns):
    histogram = Histogram()
    for ns in durations_ns:
        histogram.add_ns(ns)
    return tuple(histogram.quantiles((0.5, 0.95, 0.99)))


def check(rank, found, seconds, known=None, seen=None):
    """A window against the true steps. `known` are the numbers of the steps whose records were ever read, all by
    default, and `seen` those whose lengths the quantiles are of."""
    numbers = range(1, len(rank.steps) + 1) if known is None else known
    since_ns = rank.now_ns - round(seconds * SECOND)
    if not rank.steps or rank.steps[-1].end_ns <= since_ns:
        assert (found.steps, found.seconds, found.goodput, found.phases) == (0, 0.0, None, {})
        return
    old = [n for n in numbers if rank.steps[n - 1].end_ns <= since_ns]
    base = max(old) if old else (min(numbers) if min(numbers) > 1 else 0)
    steps, last = rank.steps[base:], rank.steps[-1]
    begin_ns, totals = (
        (rank.steps[base - 1].end_ns, rank.steps[base - 1].totals)
        if base
        else (rank.steps[0].start_ns, rank.steps[0].before)
    )
    wall_ns = last.end_ns - begin_ns
    assert found.steps == len(steps)
    assert found.seconds == wall_ns / SECOND
    assert found.steps_per_second == len(steps) * SECOND / wall_ns
    samples = sum(s.samples for s in steps)
    assert found.samples_per_second == (samples * SECOND / wall_ns if samples else None)
    productive = sum(s.inside[name] for s in steps for name in PRODUCTIVE if name in s.inside)
    assert found.goodput == productive / wall_ns
    all_productive = sum(s.inside[name] for s in rank.steps for name in PRODUCTIVE if name in s.inside)
    assert found.goodput_so_far == all_productive / (last.end_ns - rank.begun_ns)
    assert found.age_seconds == (rank.now_ns - last.end_ns) / SECOND
    kept = [s for s in steps if s.number in seen] if seen is not None else steps
    assert (found.seen, found.coverage) == (len(kept), len(kept) / len(steps))
    lengths = [s.end_ns - s.start_ns for s in kept]
    assert found.step[:3] == quantiles(lengths)
    assert found.step.seconds == sum(s.end_ns - s.start_ns for s in steps) / SECOND
    assert set(found.phases) == {"none"} | {name for name in rank.names if last.totals[name]}
    for name, spent in found.phases.items():
        assert spent[:3] == quantiles([s.inside[name] for s in kept]), name
        assert spent.seconds == (last.totals[name] - totals[name]) / SECOND, name
        assert spent.share == (last.totals[name] - totals[name]) / wall_ns, name
    assert sum(round(spent.seconds * SECOND) for spent in found.phases.values()) == wall_ns
    check_scalars(found)


def check_scalars(found):
    scalars = found.scalars("x/")
    assert all(type(value) is float for value in scalars.values())
    expected = {"x/goodput": found.goodput, "x/samples_per_second": found.samples_per_second}
    expected |= {
        f"x/step_{name}": getattr(found.step, name) for name in ("p50_seconds", "p99_seconds", "share")
    }
    for phase, spent in found.phases.items():
        expected |= {f"x/{phase}/{name}": getattr(spent, name) for name in ("p95_seconds", "share")}
    for key, value in expected.items():
        assert scalars.get(key) == value, key
    heads = ("goodput_so_far", "steps_per_second", "coverage", "age_seconds")
    assert set(scalars) >= {f"x/{name}" for name in heads}
    per_phase = 4 if found.seen else 1
    rest = 5 + (found.samples_per_second is not None)
    assert len(scalars) == rest + per_phase * (1 + len(found.phases))


def one_step(rng, rank, names):
    """A step of random phases, some of no time at all, with random time outside now and then."""
    scale = rng.choice((1_000, 1_000_000, 40_000_000))
    inside = [(rng.choice(names), rng.randrange(scale)) for _ in range(rng.randrange(1, 6))]
    outside = [(rng.choice(names), rng.randrange(3 * scale)) for _ in range(rng.choice((0, 0, 2)))]
    rank.step(inside, outside, samples=rng.choice((0, 32)))


@pytest.mark.parametrize("seed", range(6))
def test_windows_match_brute_force(monkeypatch, seed):
    rng = random.Random(seed)
    rank = Rank(monkeypatch)
    for number in range(500):
        names = rank.names[: 3 + number // 30]  # Phases come up as the run goes on.
        one_step(rng, rank, names)
        if rng.random() < 0.1:
            rank.spend("none", rng.randrange(SECOND))
        seconds = rng.choice((0.01, 0.3, 2.0, 1e9))
        if number < 4 or rng.random() < 0.7:
            check(rank, rank.window(seconds), seconds)


def test_a_step_counts_where_it_ended_with_its_whole_length(monkeypatch):
    rank = Rank(monkeypatch)
    rank.spend("none", 7 * SECOND)  # Start-up.
    for _ in range(3):
        rank.step([("loader", 30 * SECOND), ("forward", 60 * SECOND)], samples=9)
    found = rank.window(60)
    assert (found.steps, found.seconds, found.goodput, found.samples_per_second) == (1, 90.0, 60 / 90, 0.1)
    assert found.goodput_so_far == 180 / 277
    assert found.phases["loader"] == (30.0, 30.0, 30.0, 30.0, 30 / 90)
    rank.now_ns += 60 * SECOND - 1
    assert rank.window(60).steps == 1
    rank.now_ns += 1
    found = rank.window(60)
    assert (found.steps, found.goodput, found.step.p50_seconds, found.coverage) == (0, None, None, None)
    assert found.scalars() == {"goodput/goodput_so_far": 180 / 277, "goodput/age_seconds": 60.0}
    assert "no step ended in the last 60 s" in str(found)


def test_time_outside_steps_is_never_productive(monkeypatch):
    rank = Rank(monkeypatch)
    rank.step([("forward", SECOND)])
    rank.step([("mine", SECOND)], outside=[("checkpoint", 2 * SECOND), ("forward", SECOND)])
    found = rank.window(60)
    assert found.seconds == 5.0 and found.goodput == 2 / 5
    assert found.phases["checkpoint"] == (0.0, 0.0, 0.0, 2.0, 2 / 5)
    assert found.phases["forward"].seconds == 2.0 and found.phases["forward"].p99_seconds == 1.0
    assert found.step.seconds == 2.0


def test_more_steps_than_the_ring_holds_between_two_calls(monkeypatch):
    rng = random.Random(1)
    rank = Rank(monkeypatch)
    for _ in range(50):
        one_step(rng, rank, rank.names)
    check(rank, rank.window(1e9), 1e9)
    for _ in range(3000):
        one_step(rng, rank, rank.names)
    # The oldest record of the ring has lost the one before it, and so the times of its own phases.
    seen = {*range(1, 51), *range(3050 - page.STEP_RING + 2, 3051)}
    known = sorted({*seen, 3050 - page.STEP_RING + 1})
    found = rank.window(1e9)
    assert found.steps == 3050 and found.seen == 50 + page.STEP_RING - 1
    check(rank, found, 1e9, seen=seen)
    seconds = (rank.now_ns - rank.steps[60].end_ns) / SECOND  # Begins among those that nobody read.
    fresh = [n for n in known if n > 3000 - page.STEP_RING]
    check(rank, rank.window(seconds), seconds, known=fresh, seen=seen)  # Made now: it knows the ring alone.


def test_window_beginning_in_a_gap_reaches_further_back(monkeypatch):
    rank = Rank(monkeypatch)
    for _ in range(10):
        rank.step([("forward", SECOND)])
    rank.window(100)
    for _ in range(2000):
        rank.step([("forward", SECOND)])
    found = rank.window(1500)
    known = [*range(987, 2011)]
    check(rank, found, 1500, known=known, seen=set(range(988, 2011)))
    rank.window(100)
    rank.step([("loader", SECOND)])
    check(rank, rank.window(100), 100)


def test_torn_record_is_left_out_of_quantiles(monkeypatch):
    rank = Rank(monkeypatch)
    for _ in range(20):
        rank.step([("forward", SECOND), ("loader", SECOND)])
        if len(rank.steps) == 10:
            rank.recorder.words[page.W_STEP_RING + 9 * page.STEP_WORDS + page.R_SEAL] = 0
        found = rank.window(60)
    # Of the step after it the phases are not known either.
    check(rank, found, 60, seen=set(range(1, 21)) - {10, 11})


def test_fast_loop_is_thinned_with_exact_sums(monkeypatch):
    rng = random.Random(2)
    rank = Rank(monkeypatch)
    monkeypatch.setattr(window_rows, "ROWS_MAX", 64)
    for _ in range(1000):
        rank.step(
            [("loader", rng.randrange(1000, 2000)), ("forward", rng.randrange(10**6, 2 * 10**6))], samples=1
        )
        found = rank.window(1e9)
        rows = rank.windows._feed.rows[10**18]
        assert found.steps == len(rank.steps) and found.seen <= 64
        if len(rank.steps) > 64:
            assert found.seen >= 31, len(rank.steps)
        seen = {n for n in range(1, len(rank.steps) + 1) if n % rows.every == 0}
        if len(rank.steps) % 97 == 0:
            check(rank, found, 1e9, seen=seen)
    assert rows.every == 16


def test_thinning_ends_when_steps_grow_longer(monkeypatch):
    rank = Rank(monkeypatch)
    monkeypatch.setattr(window_rows, "ROWS_MAX", 64)
    for _ in range(2000):
        rank.step([("forward", SECOND // 100)])
        rank.window(10)
    rows = rank.windows._feed.rows[10 * SECOND]
    assert rows.every == 16
    # A step that is none of those kept, with a phase that none of them had; and soon too old as they are.
    rank.step([("forward", SECOND // 100), ("h2d", 1000)])
    kept = range(16, len(rank.steps), 16)
    check(rank, rank.window(10), 10, known=kept, seen=kept)
    assert rank.window(10).phases["h2d"][:4] == (0.0, 0.0, 0.0, 1e-6)
    rank.now_ns += 10 * SECOND
    assert rank.window(10).steps == 0
    rank.now_ns -= 10 * SECOND
    for _ in range(200):
        rank.step([("forward", SECOND)])
        found = rank.window(10)
    assert rows.every == 1 and found.coverage == 1.0
    check(rank, found, 10)


def test_durations_beyond_the_last_bin_are_infinite(monkeypatch):
    rank = Rank(monkeypatch)
    rank.step([("forward", 65519 * SECOND)])
    assert rank.window(1e6).step.p50_seconds == 65504.0
    rank.step([("forward", 70_000 * SECOND), ("loader", SECOND)])
    found = rank.window(1e6)
    assert found.phases["forward"].p99_seconds == found.step.p99_seconds == float("inf")
    assert found.phases["loader"].p99_seconds == 1.0
    check(rank, found, 1e6)


def test_new_attempt_begins_a_new_window(monkeypatch):
    rank = Rank(monkeypatch)
    for _ in range(30):
        rank.step([("forward", SECOND)])
        rank.window(60)
    rank.open()
    assert rank.window(60).steps == 0 and rank.window(60).goodput_so_far is None
    for _ in range(40):
        rank.step([("loader", SECOND), ("forward", SECOND)])
    check(rank, rank.window(60), 60)


def test_windows_of_different_lengths_are_bounded(monkeypatch):
    rank = Rank(monkeypatch)
    lengths = [float(n) for n in range(1, window_rows.WINDOWS_MAX + 1)]
    for _ in range(30):
        rank.step([("forward", SECOND // 10)])
        for seconds in lengths:
            check(rank, rank.window(seconds), seconds)
    assert list(rank.windows._feed.rows) == [s * SECOND for s in lengths]
    rank.window(lengths[0])
    check(rank, rank.window(99.0), 99.0)
    assert set(rank.windows._feed.rows) == {s * SECOND for s in (lengths[0], *lengths[2:], 99.0)}
    for seconds in range(100, 120):
        check(rank, rank.window(seconds), seconds)
        assert len(rank.windows._feed.rows) <= window_rows.WINDOWS_MAX >= len(rank.windows._before)
    # A rare one has lost nothing, since the others' calls read for it too.
    rank.window(400)
    for _ in range(page.STEP_RING + 100):
        rank.step([("forward", SECOND // 10)])
        rank.window(10)
    assert rank.window(400).steps == rank.window(400).seen == len(rank.steps)


def test_window_memory_is_bounded(monkeypatch):
    rank = Rank(monkeypatch)
    monkeypatch.setattr(window_rows, "ROWS_MAX", 128)
    names = rank.names[1:]

    def largest(steps):
        """The most memory in use after a step; that left behind by old rows comes and goes."""
        most = 0
        for number in range(steps):
            rank.step([(name, 1000 + 7 * (number % 300)) for name in names])
            rank.window(0.01).scalars()
            rank.steps.clear()
            most = max(most, tracemalloc.get_traced_memory()[0])
        return most

    tracemalloc.start()
    try:
        largest(800)
        before = largest(768)
        after = largest(2560)
    finally:
        tracemalloc.stop()
    assert after - before < 4096
    (rows,) = rank.windows._feed.rows.values()
    assert len(rows.rows) <= 129
    assert all(len(ordered) == rows.seen for ordered in rows.sorted)


def test_returned_window_does_not_change(monkeypatch):
    rank = Rank(monkeypatch)
    rank.step([("forward", SECOND)], samples=3)
    found = rank.window(60)
    before = found.scalars(), found.phases, str(found)
    for _ in range(100):
        rank.step([("loader", SECOND)])
        rank.window(60)
    assert (found.scalars(), found.phases, str(found)) == before


def test_interrupted_call_starts_over(monkeypatch):
    rank = Rank(monkeypatch)
    for _ in range(5):
        rank.step([("forward", SECOND)])
        rank.window(60)
    real = window_rows.Rows.add
    for error in (KeyboardInterrupt, ValueError):
        rank.step([("forward", SECOND)])
        monkeypatch.setattr(
            window_rows.Rows, "add", lambda *_, error=error: (_ for _ in ()).throw(error("cut"))
        )
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                rank.windows.window(60)
        else:
            assert rank.windows.window(60).steps == 0
            assert rank.warnings == ["no window: ValueError: cut"]
            rank.warnings.clear()
        monkeypatch.setattr(window_rows.Rows, "add", real)
        check(rank, rank.window(60), 60)


def test_concurrent_call_returns_the_previous_window(monkeypatch):
    rank = Rank(monkeypatch)
    rank.step([("forward", SECOND)])
    before = rank.window(60)
    rank.step([("forward", SECOND)])
    with rank.windows._lock:
        assert rank.window(60) is before
        assert rank.window(30).steps == 0
    assert rank.window(60).steps == 2


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "60", None, True, [], 1j])
def test_invalid_seconds_become_sixty(monkeypatch, seconds):
    rank = Rank(monkeypatch)
    rank.step([("forward", SECOND)])
    found = rank.windows.window(seconds)
    assert found.asked_seconds == 60 and found.steps == 1
    assert len(rank.warnings) == 1 and "want a number above 0" in rank.warnings[0]


def test_infinite_window_is_the_whole_attempt(monkeypatch):
    rank = Rank(monkeypatch)
    for _ in range(20):
        rank.step([("forward", SECOND)])
        assert rank.window(float("inf")).steps == len(rank.steps)


def test_productive_phases_are_those_of_the_account():
    assert set(window_rows.PRODUCTIVE) == {
        name for name, state in PHASE_STATES.items() if state == "productive"
    }


# -- in a process of its own


def test_window_is_empty_without_measurement(sdk):
    reported = sdk(
        """
        def show(w):
            emit([w.steps, w.seconds, w.goodput, w.goodput_so_far, w.phases, w.scalars(), w.step, str(w)])
        show(goodput.window())                       # before start, which it does not do
        emit(goodput._session.recorder.state)
        goodput.start(run="r")
        show(goodput.window())
        for _ in goodput.steps(range(3)): work()
        assert goodput.window().steps == 3
        pid = os.fork()
        if not pid:
            show(goodput.window())
            os._exit(0)
        os.waitpid(pid, 0)
        assert goodput.window().steps == 3
        goodput.stop()
        emit(goodput.window().steps)
        """
    ).emitted
    empty = [0, 0.0, None, None, {}, {}, [None, None, None, 0.0, None], "no step ended in the last 60 s"]
    assert reported == [empty, "not started", empty, empty, 3]
    assert sdk("emit(goodput.window(5).scalars())", GOODPUT_DISABLE="1").emitted == [{}]


def test_window_sums_hold_in_a_real_loop(sdk):
    """Inside steps, outside, from another thread all the while, from a signal handler, after a fork with the lock held."""
    outcome = sdk(
        """
        goodput.start(run="r")
        over, bad = threading.Event(), []
        def check_windows():
            while not over.is_set():
                for seconds in (0.01, 60):
                    w = goodput.window(seconds)
                    left = w.seconds - sum(spent.seconds for spent in w.phases.values())
                    if w.steps and (abs(left) > 1e-9 or not 0 <= w.goodput <= 1 or not w.seen <= w.steps):
                        bad.append([left, w.goodput, w.seen, w.steps])
        other = threading.Thread(target=check_windows)
        other.start()
        signal.signal(signal.SIGALRM, lambda *_: goodput.window(60).scalars())
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for i in goodput.steps(range(1500), samples=2):
            work()
            if i % 10 == 0:
                w = goodput.window(60)
        signal.setitimer(signal.ITIMER_REAL, 0)
        over.set()
        other.join()
        goodput._windows._lock.acquire()
        pid = os.fork()
        if not pid:
            assert goodput.window(60).steps == 0
            goodput.start(run="child")
            for _ in goodput.steps(range(2)): work()
            assert goodput.window(60).steps == 2
            goodput.stop()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        goodput._windows._lock.release()
        w = goodput.window(60)
        emit([bad[:3], w.steps, w.goodput, w.phases["forward"].p50_seconds])
        """
    )
    bad, steps, goodput, p50 = outcome.emitted[0]
    assert bad == [] and steps == 1500 and 0 < goodput < 1 and p50 > 19e-6
    assert outcome.messages() == []


def test_first_window_call_imports_nothing(sdk):
    reported = sdk(
        """
        goodput.start(run="r")
        before = set(sys.modules)
        for _ in goodput.steps(range(3)): goodput.window().scalars()
        emit(sorted(name for name in set(sys.modules) - before if name.startswith("goodput")))
        emit(sorted(set(sys.modules) & {"dataclasses", "statistics", "goodput.account"}))
        """
    ).emitted
    assert reported == [[], []]


def test_documented_window_fields_exist(monkeypatch):
    """docs/in-the-loop.md names fields; each is one of a Window, a phase, the scalars or those of a report."""
    text = (ROOT / "docs" / "in-the-loop.md").read_text()
    rank = Rank(monkeypatch)
    rank.step([(name, SECOND) for name in rank.names], samples=2)
    found = rank.window(60)
    rows = re.findall(r"^\| `([a-z0-9_]+)` \|", text, re.M)
    assert len(rows) >= 12
    assert all(hasattr(found, name) or hasattr(found.step, name) for name in rows)
    keys = re.findall(r"`(goodput/[a-z0-9_/]+)`", text)
    reports = {key for key in keys if key.startswith("goodput/account/")}
    assert reports == {"goodput/account/goodput", "goodput/account/steps_kept"}, "see tests/loggers"
    assert set(keys) - reports and set(keys) - reports <= set(found.scalars())


def test_text_has_no_powers_of_ten(monkeypatch):
    """Rates in tokens are large, and steps may take microseconds."""
    rank = Rank(monkeypatch)
    rank.window(60)
    for _ in range(20):
        rank.step([("forward", 50_000)], samples=4096)
    found = rank.window(60)
    for text in (str(found), found._repr_html_()):
        assert not re.search(r"\de[+-]\d", text) and "samples/s" in text, text
    assert str(Window(float("inf"))) == "no step has ended"
    assert str(Window(36_000.0)) == "no step ended in the last 36,000 s"


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"),
        (9e-6, "0.0000090"),
        (0.01234567, "0.01235"),
        (999.96, "1000"),
        (1234.5, "1,234"),
        (31_300.4, "31,300"),
        (1e9, "1,000,000,000"),
    ],
)
def test_figures_in_four_digits(value, text):
    assert four_digits(value) == text
