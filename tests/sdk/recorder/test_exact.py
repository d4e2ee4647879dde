"""Every nanosecond in one place, whatever the loop looks like; and both implementations see the same structure."""

from __future__ import annotations

import importlib.util
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sdk import sdk_process
from support.sdk.checks import check
from support.sdk.puppet import Puppet

from goodput.histograms import histogram
from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.recorder.recorder import Recorder

NAMES = ("forward", "backward", "h2d", "optimizer", "evaluation", "mine", "other")
EXAMPLES = settings(
    max_examples=200, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip

names = st.sampled_from(NAMES)
leaves = st.one_of(
    st.tuples(st.just("spin"), st.integers(0, 3000)),
    st.tuples(st.just("mark"), st.text(max_size=5)),
    st.just(("raise",)),
    st.tuples(st.just("nest"), st.integers(1, 40), names),
    st.tuples(st.just("phase"), names, st.just([])),
)
misused = st.one_of(st.tuples(st.just("enter"), names), st.tuples(st.just("exit"), names))
resumes = st.tuples(st.just("resumed"), st.integers(-1, 6))


def programs(leaf, *more):
    """Bodies nested a few deep, of these leaves and of `more` that has a phase's name and a body."""

    def around(body):
        return st.one_of(
            leaf,
            st.tuples(st.sampled_from(["phase", *more]), names, body),
            st.tuples(st.just("step"), st.none() | st.integers(-1, 9), body),
            st.tuples(
                st.just("steps"),
                st.integers(0, 4),
                st.sampled_from(["exhaust", "break", "top", "loader"]),
                body,
            ),
            st.tuples(st.just("checkpoint"), body),
        )

    return st.recursive(
        st.lists(leaf, max_size=3),
        lambda inner: st.lists(around(inner), min_size=1, max_size=5),
        max_leaves=12,
    )


def as_json(program) -> list:
    return [[part if not isinstance(part, (list, tuple)) else as_json(part) for part in op] for op in program]


@pytest.fixture
def puppets(directory):
    """One per implementation that is built."""
    built = [False] if importlib.util.find_spec("goodput.sdk.recorder._fast") is not None else []
    made = [Puppet(directory, pure) for pure in (*built, True)]
    yield made
    for puppet in made:
        puppet.end()


def play(puppets, program) -> list:
    """Run it on all; check every page to the nanosecond; the traces must be the same. Returns the snapshots."""
    traces, found = [], []
    for puppet in puppets:
        trace, path = puppet.play(program)
        assert all(look == "Boom" or look[-1] for look in trace), "totals do not sum to the time"
        traces.append(trace)
        prefix = Path(path).name.rsplit(".", 2)[0]
        for page_path in sorted(Path(path).parent.glob(f"{prefix}.*.page")):
            with Reader(str(page_path)) as reader:
                found.append(check(reader.snapshot()))
            os.unlink(page_path)
    assert all(trace == traces[0] for trace in traces)
    return found


@EXAMPLES
@given(program=programs(leaves, "held"))
def test_random_loops_are_exact_in_both_implementations(puppets, program):
    for snapshot in play(puppets, as_json(program)):
        assert snapshot.ended == "finished"


@EXAMPLES
@given(program=programs(st.one_of(leaves, misused, resumes), "held"))
def test_random_misuse_is_exact_in_both_implementations(puppets, program):
    play(puppets, as_json(program))


@EXAMPLES
@given(moves=st.lists(misused, max_size=60))
def test_phases_entered_and_left_in_any_order(puppets, moves):
    """Against the plain meaning: a phase is open from its enter to its exit, time is the youngest open one's."""
    stack, expected = [], []
    drops = 0
    for name, phase in moves:
        if name == "enter":
            stack.append(phase)
        elif stack and stack[-1] == phase:
            stack.pop()
        else:
            drops += 1
            if phase in stack:
                stack.reverse()
                stack.remove(phase)  # the youngest of that name
                stack.reverse()
        expected.append((stack[-1] if stack else "none", len(stack)))
    columns = {name: i for i, name in enumerate((*page.PHASES, "mine", "other"))}
    for puppet in puppets:
        trace, path = puppet.play(as_json(moves))
        assert [(look[0], look[4]) for look in trace[:-1]] == [
            (columns[phase], depth) for phase, depth in expected
        ]
        with Reader(path) as reader:
            assert check(reader.snapshot()).drops["phase"] == drops
        os.unlink(path)


@EXAMPLES
@given(program=programs(leaves))
def test_counted_steps_follow_the_rules(puppets, program):
    expected = Rules()
    expected.run(program)
    for snapshot in play(puppets, as_json(program)):
        assert (snapshot.steps_done, snapshot.step_next) == (expected.steps, expected.next)
        assert snapshot.samples == expected.samples


class Boom(Exception):
    pass


class Rules:
    """The rules of sdk/recorder/steps.py once more, on counts alone."""

    def __init__(self):
        self.steps = self.next = self.samples = self.open = self.entries = 0
        self.in_step = self.raised = False

    def run(self, program) -> None:
        try:
            self.body(program)
        except Boom:
            pass

    def body(self, program) -> None:
        for name, *arguments in program:
            getattr(self, {"raise": "boom", "steps": "loop"}.get(name, name))(*arguments)

    def boom(self):
        raise Boom

    def spin(self, _):
        pass

    mark = spin

    def nest(self, depth, _):
        self.entries += depth

    def phase(self, _, body):
        self.open += 1
        try:
            self.body(body)
        except BaseException:
            self.raised = True
            raise
        finally:
            self.open -= 1
            self.entries += 1

    def checkpoint(self, body):
        self.phase("checkpoint", body)

    def done(self, samples) -> None:
        self.steps, self.next, self.samples, self.in_step = (
            self.steps + 1,
            self.next + 1,
            self.samples + samples,
            False,
        )

    def step(self, index, body):
        mine = not self.in_step and not self.open
        if mine:
            self.in_step = True
            self.next = index if index is not None and index >= self.next else self.next
        try:
            self.body(body)
        except Boom:
            self.in_step = self.in_step and not mine
            raise
        if mine:
            self.done(2)

    def loop(self, turns, end, body):
        mine = not self.in_step and not self.open
        for i in range(turns):
            if mine:
                self.in_step, self.raised, entries = True, False, self.entries
            try:
                if end == "top" and i == turns - 1:
                    return self.left(mine, entries if mine else 0)
                self.body(body)
                if end == "break" and i == turns - 1:
                    return self.left(mine, entries if mine else 0)
            except Boom:
                self.left(mine, entries if mine else 0)
                raise
            if mine:
                self.done(3)
        if end == "loader":
            self.raised = self.raised or mine
            raise Boom

    def left(self, mine, entries):
        if mine and self.entries > entries and not self.raised:
            self.done(3)
        elif mine:
            self.in_step = False


def test_boundary_uses_the_later_clock_reading(directory, pure):
    """A signal handler that came after the reading has moved the clock on; no total may go backwards for it."""
    code = """
        goodput.start(run="r")
        recorder = goodput._session.recorder
        with goodput.step(): work()
        for _ in range(3):
            now = time.perf_counter_ns()
            with goodput.phase("forward"): spin(100)
            last, before = recorder.last_ns, snapshot().totals
            assert recorder.end_gap(now) == last and snapshot().totals == before
            assert recorder.begin_step(last, None, 0)
            now = time.perf_counter_ns()
            with goodput.phase("forward"): spin(100)
            last, before = recorder.last_ns, snapshot().totals
            assert recorder.end_step(now) == last and snapshot().totals == before
            recorder.charge(now)
            assert recorder.last_ns == last and snapshot().totals == before
        assert not recorder.begin_step(now, None, 0)
    """
    out = sdk_process.run(code, directory, pure)
    assert out.status == 0, out.errors
    assert check(out.snapshot()).steps_done == 4


# -- bins


EDGES = [
    0, 1, 29, 30, 59, 60, 61_035, 61_036, 999, 10**6, 10**9, 65_504 * 10**9, 65_519_999_999_999, 65_520 * 10**9 - 1,
    65_520 * 10**9, 65_520 * 10**9 + 1, 2**62, 2**63 - 1,
]  # fmt: skip


def around_every_bin() -> list[int]:
    """The last ns of each bin and the first of the next, at each 97th bin."""
    found = []
    for bin in range(0, histogram.BINS, 97):
        high = int((histogram.value_of(bin) + histogram.value_of(min(bin + 1, histogram.BINS - 1))) / 2 * 1e9)
        found += [max(high + d, 0) for d in (-1, 0, 1, 2)]
    return found


def test_step_lengths_are_counted_in_their_bins():
    recorder, rng = Recorder(), random.Random(7)
    recorder.open(page.private_words(), 0)
    words = recorder.words
    values = [*EDGES, *around_every_bin(), *(rng.getrandbits(rng.randrange(1, 60)) for _ in range(20_000))]
    for value in values:
        word = page.W_HISTOGRAMS + histogram.bin_of_ns(value)
        before, words[page.W_TOTALS] = words[word], 0
        recorder.last_ns = recorder.step_start_ns = 0  # No run lasts 2**63 ns.
        recorder.close_step(value)
        assert words[word] == before + 1, value
