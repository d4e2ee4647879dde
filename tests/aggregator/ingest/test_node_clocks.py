"""Bounds of how far each node's clock is from the aggregator's, and steps of the aggregator's own."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.account.account_history import Process, ns
from support.aggregator.reports import node_report, rank_report

from goodput.aggregator.clock import WIDEST, SteadyClock
from goodput.aggregator.ingest import node_clocks
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ingest.node_clocks import HALF_WINDOW, PUSH_NS_MAX, NodeClocks, follow_step
from goodput.aggregator.ingest.store import Store

START = ns(1_000_000)


class Node:
    """An agent whose clock is `ahead` seconds ahead of the time that the test sets."""

    def __init__(self, clocks: NodeClocks, name: str = "n0", ahead: float = 0.0):
        self.clocks, self.name, self.ahead_ns = clocks, name, ns(ahead)
        self.answered = {}

    def push(
        self,
        at_ns: int,
        there: float = 0.02,
        back: float = 0.03,
        lost: bool = False,
        ranks=(),
        arrived_ns=None,
    ) -> None:
        """One push that takes so long until it arrives, and until it is answered."""
        sent_ns = at_ns + self.ahead_ns
        report = node_report(*ranks, node=self.name, sent_ns=sent_ns, **self.answered)
        self.clocks.add(report, at_ns + ns(there) if arrived_ns is None else arrived_ns)
        if not lost:
            self.answered = {"previous_sent_ns": sent_ns, "previous_took_ns": ns(there) + ns(back)}


@pytest.mark.parametrize("ahead", (-3600, -300, -0.5, 0, 0.5, 300))
@given(seed=st.integers(0, 1 << 32))
def test_bounds_hold_and_are_tight(ahead, seed):
    """Whatever a push takes, and if answers are lost, the offset is within bounds no wider than the fastest push."""
    rng, clocks = random.Random(seed), NodeClocks()
    node, times = Node(clocks, ahead=ahead), []
    for i in range(rng.randrange(2, 40)):
        there, back = rng.expovariate(10), rng.expovariate(10)
        node.push(START + i * ns(5), there, back, lost=rng.random() < 0.2)
        times.append(there + back)
        found = clocks.offset("n0")
        assert found.low_ns <= ns(ahead) <= found.high_ns
    if found.high_ns < WIDEST[1] and len(times) > HALF_WINDOW and all(time < 1 for time in times):
        assert found.is_skewed == (abs(ahead) > 5)


def test_estimate_is_half_a_round_trip_exact():
    clocks = NodeClocks()
    node = Node(clocks, ahead=300)
    for i in range(20):
        node.push(START + i * ns(5), there=0.04, back=0.02)
    found = clocks.offset("n0")
    assert found == (ns(300) - ns(0.04), ns(300) + ns(0.02))
    assert found.ns == ns(299.99) and found.correction_ns == ns(299.99)


def test_late_pushes_are_no_offset():
    """One push takes 20 s, which its agent gives up: the first one of a node, or one among others."""
    clocks = NodeClocks()
    node = Node(clocks)
    node.push(START, there=20, lost=True)
    assert not clocks.offset("n0").is_known and not clocks.offset("n0").is_skewed
    for i in range(1, 20):
        node.push(START + i * ns(5), there=20 if i % 5 == 0 else 0.02, lost=i % 5 == 0)
        found = clocks.offset("n0")
        assert not found.is_skewed and not found.correction_ns and not clocks.skewed(["n0"])
        assert not found.is_known or found.ns == pytest.approx(0, abs=ns(0.03))


def test_our_own_wrong_clock_is_no_offset_of_the_nodes():
    """Where three nodes or more agree, offsets count from theirs; two may be wrong alike."""
    for count, reference in ((2, 0), (3, 600), (9, 600)):
        clocks = NodeClocks(lambda: START)
        for i in range(count):
            node = Node(clocks, f"n{i}", 600)
            for at in range(2):
                node.push(START - ns(5) * (2 - at))
        assert clocks.reference_ns() == pytest.approx(ns(reference), abs=ns(0.03))


@pytest.mark.parametrize("step", (-3600, -30, 30, 3600))
def test_a_stepped_node_is_known_at_once(step):
    """With the first push after a step forward; one backward might be a late push until its way back is known."""
    clocks = NodeClocks()
    node = Node(clocks)
    for i in range(30):
        node.push(START + i * ns(5))
    node.ahead_ns += ns(step)
    for i in range(30, 31 if step > 0 else 32):
        node.push(START + i * ns(5))
    assert clocks.offset("n0").is_skewed
    for i in range(31, 40):
        node.push(START + i * ns(5))
    found = clocks.offset("n0")
    assert found.low_ns <= ns(step) <= found.high_ns and found.is_skewed


def test_small_skew_moves_no_time():
    """Half a second is seen; a time is moved only where it is outside the bounds."""
    clocks = NodeClocks()
    for name, ahead in (("n0", 0.5), ("n1", 0.01)):
        node = Node(clocks, name, ahead)
        for i in range(9):
            node.push(START + i * ns(5))
    assert clocks.ours("n0", START) == pytest.approx(START - ns(0.5), abs=ns(0.02))
    assert clocks.ours("n1", START) == START == clocks.ours("unknown", START)
    assert not clocks.skewed(["n0", "n1"])


def test_hosts_in_containers_have_their_nodes_clock():
    clocks = NodeClocks()
    node = Node(clocks, ahead=60)
    node.push(START, ranks=[rank_report(Process(0, 1, 1000), host="pod-7")])
    assert [host for host, _ in clocks.skewed(["pod-7", "pod-8"])] == ["pod-7"]


def test_hostile_times_and_names_are_ignored(monkeypatch):
    monkeypatch.setattr(node_clocks, "NODES_MAX", 3)
    clocks = NodeClocks()
    for name, sent_ns in (("", 1), ("a\n", 1), ("x" * 256, 1), ("n0", 0), ("n0", -5), ("n0", 1 << 63)):
        clocks.add(node_report(node=name, sent_ns=sent_ns), START)
        assert clocks.offset(name) is None
    clocks.add(node_report(node="n0", sent_ns=START), START)
    for took in (-1, PUSH_NS_MAX + 1, 1 << 62):
        clocks.add(
            node_report(node="n0", sent_ns=START, previous_sent_ns=START, previous_took_ns=took), START
        )
    assert clocks.offset("n0") == (0, WIDEST[1])
    for name in ("n1", "n2", "n0", "n3"):
        Node(clocks, name).push(START)
    assert [clocks.offset(name) is not None for name in ("n0", "n1", "n2", "n3")] == [True, False, True, True]


# ---- The aggregator's own clock


class Machine:
    """A machine's clocks: time passes for both, and the wall clock may be set."""

    def __init__(self):
        self.unix_ns, self.boot_ns = START, 77
        self.clock = SteadyClock(lambda: self.unix_ns, lambda: self.boot_ns)

    def pass_(self, seconds: float) -> None:
        self.unix_ns += ns(seconds)
        self.boot_ns += ns(seconds)

    def step(self, seconds: float) -> None:
        self.unix_ns += ns(seconds)


@pytest.mark.parametrize("step", (-3600, 3600))
def test_steps_of_the_wall_clock_change_nothing(step):
    machine = Machine()
    clocks, store = NodeClocks(machine.clock), Store()
    nodes = [Node(clocks, f"n{i}") for i in range(3)]
    for _ in range(4):
        machine.pass_(5)
        for node in nodes:
            node.push(machine.clock(), there=0)
    machine.step(step)
    machine.pass_(1)
    assert machine.clock() == START + ns(21) and machine.clock.step_ns() == ns(step)
    assert not follow_step(machine.clock, clocks, store), "the nodes do not confirm it"


@pytest.mark.parametrize("off", (-3600, 3600))
def test_confirmed_steps_are_followed_and_ages_stay(off):
    """The aggregator starts with a wrong clock, which is set right later."""
    machine = Machine()
    machine.unix_ns += ns(off)
    machine.clock = SteadyClock(lambda: machine.unix_ns, lambda: machine.boot_ns)
    clocks, store = NodeClocks(machine.clock), Store()
    hangs = HangDetector(store, stall_seconds=60, stale_seconds=30, clock_ns=machine.clock)
    nodes = [Node(clocks, "n0"), Node(clocks, "n1"), Node(clocks, "wrong", ahead=120)]
    true_ns = START
    for _ in range(4):
        machine.pass_(5)
        true_ns += ns(5)
        for node in nodes:
            node.push(true_ns, there=0, back=0, arrived_ns=machine.clock())
    store.merge(rank_report(Process(0, 1, true_ns / 1e9 - 9).steps(2, forward=1).saved()), machine.clock())
    received_ns, progress_ns = (store.runs["r1"].attempts[0, 1].received_ns, store.progress_ns["r1"])
    assert clocks.offset("n0").is_skewed and not follow_step(machine.clock, clocks, store)
    machine.step(-off)
    assert follow_step(machine.clock, clocks, store, hangs) and machine.clock() == true_ns
    assert store.runs["r1"].attempts[0, 1].received_ns == received_ns - ns(off) == true_ns
    assert store.progress_ns["r1"] == progress_ns - ns(off)
    assert store.checkpoints["r1"].committed_ns == true_ns and store.reported_ns["r1"] == true_ns
    assert hangs._began_ns == true_ns - ns(20)
    assert [name for name, _ in clocks.skewed(["n0", "n1", "wrong"])] == ["wrong"]
    assert clocks.offset("n0").low_ns == 0 and not follow_step(machine.clock, clocks, store)
