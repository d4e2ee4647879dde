"""Health events wait for the aggregator, bounded, each once, and are always such as it takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_aggregator import Aggregator
from node_rank import Rank
from node_tree import Clock, samples

from goodput import schema
from goodput.metrics import Families
from goodput_exporters.agent import Agent
from goodput_exporters.gpu import Event, Sample
from goodput_exporters.health import (
    COUNTED_MAX,
    SAME_MAX,
    SAME_SECONDS,
    SENT_MAX,
    USUAL,
    WAITING_MAX,
    HealthLog,
)
from goodput_exporters.push import ACCEPTED, UNREACHABLE, Pusher


@pytest.fixture
def log(clock):
    return HealthLog(clock.unix_ns)


def event(kind: str = "xid", device: str = "GPU-1", severity: str = "warning", **given) -> Event:
    return Event(kind, device, 1_700_000_000 * 10**9, severity=severity, **given)


def series(log: HealthLog) -> dict:
    families = Families("node")
    log.collect(families)
    return {
        (name.removeprefix("goodput_health_events_"), *labels): value
        for (name, labels), value in samples(families).items()
        if value or not labels
    }


def test_the_usual_events_are_there_from_the_start(log):
    """Without a zero before it, the first event is no increase to Prometheus."""
    families = Families("node")
    log.collect(families)
    found = samples(families)
    assert found["goodput_health_events_total", ("xid", "critical")] == 0
    assert found["goodput_health_events_total", ("link_down", "warning")] == 0 and len(USUAL) < COUNTED_MAX


def test_an_event_is_sent_until_it_is_settled(log):
    log.add(event(code=79, name="GPU has fallen off the bus", text="seen"), [("r", 3), ("r", 1)])
    (sent,) = log.pending()
    assert sent.hits == [("r", 1), ("r", 3)] and (sent.kind, sent.device, sent.code) == ("xid", "GPU-1", 79)
    assert (sent.name, sent.text, sent.severity) == ("GPU has fallen off the bus", "seen", "warning")
    assert log.pending() == [sent]
    log.add(event(code=13), [])
    log.settled([sent])
    assert [one.code for one in log.pending()] == [13]
    log.settled([sent])
    assert series(log) == {
        ("total", "xid", "warning"): 2, ("dropped_total",): 0, ("waiting",): 1,
    }  # fmt: skip


def test_beyond_the_bound_the_oldest_of_the_least_severe_goes_and_is_counted(log):
    log.add(event("first", severity="info"), [])
    log.add(event("second", severity="warning"), [])
    log.add(event("third", severity="info"), [])
    for number in range(WAITING_MAX - 3):
        log.add(event("later", severity="critical", code=number), [])
    assert series(log)["dropped_total",] == 0
    for gone in ("first", "third", "second"):
        waiting = log._waiting
        assert gone in [one.kind for one in waiting]
        log.add(event("later", severity="critical"), [])
        assert gone not in [one.kind for one in log._waiting] and len(log._waiting) == WAITING_MAX
    log.add(event("late", severity="info"), [])  # It is itself the least of all.
    assert {one.severity for one in log._waiting} == {"critical"}
    assert series(log)["dropped_total",] == 4 and series(log)["waiting",] == WAITING_MAX
    assert [one.code for one in log.pending()] == list(range(SENT_MAX))


def test_numbers_only_grow_over_restarts_and_clocks_that_stand_or_go_back(clock):
    numbers = []
    for _ in range(3):
        log = HealthLog(clock.unix_ns)
        for at in range(200):
            clock.seconds += (0, 1e-3, -1e-4)[at % 3]
            log.add(event(code=at), [])
        numbers += [one.number for one in log.pending()]
        clock.seconds += 1.0
    assert numbers == sorted(set(numbers)) and len(numbers) == 600


def test_of_two_drivers_that_tell_the_same_one_is_taken(log, clock):
    def tell(source: str, **given) -> int:
        before = len(log.pending())
        log.add(event(**given), [], source)
        return len(log.pending()) - before

    assert [tell("nvml", code=79), tell("dcgm", code=79)] == [1, 0]
    assert [tell("nvml", code=79), tell("dcgm", code=79)] == [1, 0]  # It happened twice.
    assert [tell("dcgm", code=48), tell("dcgm", device="GPU-2", code=79), tell("dcgm", kind="ecc")] == [
        1,
        1,
        1,
    ]
    clock.seconds += SAME_SECONDS - 1
    assert tell("dcgm", code=79) == 0
    clock.seconds += 1
    assert [tell("dcgm", code=79), tell("nvml", code=79)] == [1, 0]


def test_what_is_remembered_and_counted_is_bounded(log):
    for number in range(2 * SAME_MAX):
        log.add(event(f"kind{number}", device=f"GPU-{number}"), [], "nvml")
    found = series(log)
    assert len(log._told) == SAME_MAX
    kept = COUNTED_MAX - len(USUAL)
    assert len(found) == kept + 1 + 2 and found["total", "other", "warning"] == 2 * SAME_MAX - kept


def test_texts_are_cut_before_they_are_remembered(log):
    for number in range(50):
        log.add(Event("x" * 10**5, f"{number} " + "y" * 10**5, 5), [])
    assert max(len(text) for what in log._told for text in what[:2]) <= 255 and len(log._told) == 50


def test_where_nobody_is_to_be_sent_to_events_are_only_counted(clock):
    log = HealthLog(clock.unix_ns, kept=False)
    for number in range(2 * WAITING_MAX):
        log.add(event(code=number), [])
    found = series(log)
    assert found == {("total", "xid", "warning"): 2 * WAITING_MAX, ("dropped_total",): 0, ("waiting",): 0}
    assert (
        not Agent("/nowhere").health_log._kept and Agent("/nowhere", aggregator="http://x").health_log._kept
    )


TEXTS = st.text(st.characters(codec=None), max_size=300)
NUMBERS = st.integers(-(1 << 63), 1 << 64)


@given(
    TEXTS, TEXTS, NUMBERS, NUMBERS, TEXTS, st.sampled_from(["info", "critical", "", "CRITICAL", "\ud800"]), TEXTS,
    st.lists(st.tuples(st.one_of(TEXTS, st.just("r")), NUMBERS), max_size=5), st.integers(0, 400),
)  # fmt: skip
def test_whatever_a_driver_says_the_aggregator_can_take(
    kind, device, at, code, name, severity, text, hits, more
):
    log = HealthLog(Clock().unix_ns)
    log.add(Event(kind, device, at, code, name, severity, text), hits + [("r", rank) for rank in range(more)])
    (sent,) = log.pending()
    assert schema.is_health(sent), sent
    assert len(set(sent.hits)) == len(sent.hits) and (not more or ("r", 0) in sent.hits)
    report = schema.decode(schema.encode(schema.NodeReport("n0", 1, [], health=[sent])))
    assert report.health == [sent]


@pytest.fixture
def aggregator():
    server = Aggregator()
    yield server
    server.close()


def test_events_go_with_a_push_until_one_is_answered(log, aggregator):
    refuse = [True]
    aggregator.answer = lambda *_: (503, b"") if refuse[0] else None
    pusher = Pusher(aggregator.url, "n0", health=log)
    for number in range(SENT_MAX + 10):
        log.add(event(code=number), [("r1", 0)])
    assert [pusher.push(), pusher.push()] == [UNREACHABLE, UNREACHABLE] and len(aggregator.requests) == 2
    refuse[0] = False
    outcomes = [pusher.push(), pusher.push()]
    told = [one.code for report in aggregator.reports for one in report.health]
    assert outcomes == [ACCEPTED, ACCEPTED] and told == list(range(SENT_MAX + 10))
    assert log.pending() == [] and len(aggregator.requests) == 4
    pusher.push()  # Nothing to send, so nothing is sent.
    assert len(aggregator.requests) == 4


def test_a_link_that_goes_down_hits_the_living_ranks_of_the_node(tree, clock, aggregator):
    Rank(tree / "pages").step({"forward": 1000})
    roots = {"sysfs": str(tree / "sys"), "procfs": str(tree / "proc")}
    clocks = {"monotonic_ns": clock.monotonic_ns, "unix_ns": clock.unix_ns}
    agent = Agent(str(tree / "pages"), aggregator=aggregator.url, node="n0", **roots, **clocks)
    agent.look()
    (tree / "sys/class/net/eth0/carrier").write_text("0\n")
    agent._links_ns = 0
    agent.look()
    agent.pusher.push()
    ((sent,),) = [report.health for report in aggregator.reports]
    assert (sent.kind, sent.device, sent.hits) == ("link_down", "eth0", [("r1", 0)])
    assert b'goodput_health_events_total{kind="link_down",severity="warning"} 1.0' in agent.exposition()
    assert b"goodput_health_events_waiting 0.0" in agent.exposition()


def test_a_join_that_fails_costs_no_event(tree, clock, monkeypatch):
    agent = Agent(str(tree / "pages"), aggregator="http://127.0.0.1:1", sysfs=str(tree / "sys"))
    monkeypatch.setattr(agent.phases, "hear", lambda sample: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        agent._hear(Sample("nvml", 1, [], events=[event(code=79)]))
    assert [one.code for one in agent.health_log.pending()] == [79]
