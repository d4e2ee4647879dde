"""The queue of health events: bounded, without duplicates, and always valid for the aggregator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.node.agents import agent_on
from support.node.node_rank import Rank
from support.node.node_tree import Clock, collect

from goodput.wire import schema
from goodput_exporters.agent import Agent
from goodput_exporters.events.event_log import (
    LINES_MAX,
    RANKS_SHOWN,
    SECONDS_PER_LINE,
    RateLimitedFormatter,
    format_event,
)
from goodput_exporters.events.event_queue import (
    BATCH_MAX,
    COUNTED_MAX,
    DEVICES_MAX,
    KINDS,
    POSSIBLE,
    SAME_MAX,
    SAME_SECONDS,
    WAITING_MAX,
    EventQueue,
)
from goodput_exporters.gpu.sample import Event, Gpu, Sample
from goodput_exporters.push.pusher import ACCEPTED, UNREACHABLE, Pusher


@pytest.fixture
def log(clock):
    return EventQueue(clock.unix_ns)


def event(kind: str = "xid", device: str = "GPU-1", severity: str = "warning", **given) -> Event:
    return Event(kind, device, 1_700_000_000 * 10**9, severity=severity, **given)


def series(log: EventQueue) -> dict:
    return {
        (name.removeprefix("goodput_health_events_"), *labels): value
        for (name, labels), value in collect(log).items()
        if value or not labels
    }


def totals(log: EventQueue) -> dict:
    """Count by (device, kind, severity), zeros included."""
    return {labels: value for (name, labels), value in collect(log).items() if name.endswith("events_total")}


def test_possible_events_are_exposed_as_zero(log):
    """Without a zero before it, the first event is no increase to Prometheus."""
    assert totals(log) == {}
    log.set_devices("gpu", ["GPU-1", "GPU-2"], "nvml")
    log.set_devices("rdma", ["mlx5_0/1"])
    found = totals(log)
    assert set(found.values()) == {0} and len(found) == 2 * len(POSSIBLE["gpu"]) + len(POSSIBLE["rdma"])
    assert {("GPU-2", "xid", "critical"), ("mlx5_0/1", "link_down", "critical")} <= found.keys()
    log.add(event(device="GPU-2", severity="critical"), [])
    assert totals(log) == {**found, ("GPU-2", "xid", "critical"): 1}
    # One that is gone has no zeros any more; what happened to it stays counted.
    log.set_devices("gpu", ["GPU-1"], "nvml")
    assert {labels for labels in totals(log) if labels[0] == "GPU-2"} == {("GPU-2", "xid", "critical")}


def test_agent_registers_gpus_links_and_drivers(tree, monkeypatch):
    agent = Agent(str(tree / "pages"), sysfs=str(tree / "sys"), procfs=str(tree / "proc"), drivers=())
    parts = [Gpu("GPU-1"), Gpu("MIG-1", parent="GPU-1")]
    agent._receive(Sample("nvml", 1, parts))
    agent.poll()
    found = totals(agent.events)
    assert {device for device, kind, _ in found if kind == "xid"} == {"GPU-1"}
    assert ("eth0", "link_down", "warning") in found and ("tcp", "retransmits", "warning") in found
    assert set(found.values()) == {0}


def test_event_is_sent_until_acknowledged(log):
    log.add(event(code=79, name="GPU has fallen off the bus", text="seen"), [("r", 3), ("r", 1)])
    (sent,) = log.pending()
    assert sent.hits == [("r", 1), ("r", 3)] and (sent.kind, sent.device, sent.code) == ("xid", "GPU-1", 79)
    assert (sent.name, sent.text, sent.severity) == ("GPU has fallen off the bus", "seen", "warning")
    assert log.pending() == [sent]
    log.add(event(code=13), [])
    log.acknowledge([sent])
    assert [one.code for one in log.pending()] == [13]
    log.acknowledge([sent])
    assert series(log) == {("total", "GPU-1", "xid", "warning"): 2, ("dropped_total",): 0, ("waiting",): 1}


def test_full_queue_drops_oldest_least_severe(log):
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
    assert [one.code for one in log.pending()] == list(range(BATCH_MAX))


def test_numbers_grow_across_restarts_and_clock_steps(clock):
    numbers = []
    for _ in range(3):
        log = EventQueue(clock.unix_ns)
        for at in range(200):
            clock.seconds += (0, 1e-3, -1e-4)[at % 3]
            log.add(event(code=at), [])
        numbers += [one.number for one in log.pending()]
        clock.seconds += 1.0
    assert numbers == sorted(set(numbers)) and len(numbers) == 600


def test_duplicate_of_another_driver_is_dropped(log, clock):
    def report(source: str, **given) -> int:
        before = len(log.pending())
        log.add(event(**given), [], source)
        return len(log.pending()) - before

    assert [report("nvml", code=79), report("dcgm", code=79)] == [1, 0]
    assert [report("nvml", code=79), report("dcgm", code=79)] == [1, 0]  # It happened twice.
    for other in ({"code": 48}, {"code": 79, "device": "GPU-2"}, {"kind": "ecc"}):
        assert report("dcgm", **other) == 1
    clock.seconds += SAME_SECONDS - 1
    assert report("dcgm", code=79) == 0
    clock.seconds += 1
    assert [report("dcgm", code=79), report("nvml", code=79)] == [1, 0]


def test_memory_and_series_are_bounded(log):
    for number in range(2 * SAME_MAX):
        log.add(event(f"kind{number}", device=f"GPU-{number}"), [], "nvml")
    log.add(event("xid", device="GPU-new", severity="critical"), [])
    found = totals(log)
    assert len(log._last) == SAME_MAX
    assert len(found) == COUNTED_MAX + 2 and found["other", "other", "warning"] == 2 * SAME_MAX - COUNTED_MAX
    # A kind that is ours keeps its name.
    assert found["other", "xid", "critical"] == 1 and "xid" in KINDS
    log.set_devices("gpu", [f"new-{number}" for number in range(2 * DEVICES_MAX)], "nvml")
    assert len(totals(log)) == COUNTED_MAX + 2 + DEVICES_MAX * len(POSSIBLE["gpu"])


def test_texts_are_truncated(log):
    for number in range(50):
        log.add(Event("x" * 10**5, f"{number} " + "y" * 10**5, 5), [])
    assert max(len(text) for what in log._last for text in what[:2]) <= 255 and len(log._last) == 50


def test_without_aggregator_events_are_only_counted(clock):
    log = EventQueue(clock.unix_ns, is_sent=False)
    for number in range(2 * WAITING_MAX):
        log.add(event(code=number), [])
    expected = {("total", "GPU-1", "xid", "warning"): 2 * WAITING_MAX, ("dropped_total",): 0, ("waiting",): 0}
    assert series(log) == expected
    assert not Agent("/nowhere").events._is_sent and Agent("/nowhere", aggregator="http://x").events._is_sent


TEXTS = st.text(st.characters(codec=None), max_size=300)
NUMBERS = st.integers(-(1 << 63), 1 << 64)


@given(
    TEXTS, TEXTS, NUMBERS, NUMBERS, TEXTS, st.sampled_from(["info", "critical", "", "CRITICAL", "\ud800"]), TEXTS,
    st.lists(st.tuples(st.one_of(TEXTS, st.just("r")), NUMBERS), max_size=5), st.integers(0, 400),
)  # fmt: skip
def test_any_event_is_accepted_by_the_schema(kind, device, at, code, name, severity, text, hits, more):
    log = EventQueue(Clock().unix_ns)
    log.add(Event(kind, device, at, code, name, severity, text), hits + [("r", rank) for rank in range(more)])
    (sent,) = log.pending()
    assert schema.is_health(sent), sent
    assert len(set(sent.hits)) == len(sent.hits) and (not more or ("r", 0) in sent.hits)
    report = schema.decode(schema.encode(schema.NodeReport("n0", 1, [], health=[sent])))
    assert report.health == [sent]


def test_events_are_pushed_until_acknowledged(log, aggregator):
    refuse = [True]
    aggregator.answer = lambda *_: (503, b"") if refuse[0] else None
    pusher = Pusher(aggregator.url, "n0", health=log)
    for number in range(BATCH_MAX + 10):
        log.add(event(code=number), [("r1", 0)])
    assert [pusher.push(), pusher.push()] == [UNREACHABLE, UNREACHABLE] and len(aggregator.requests) == 2
    refuse[0] = False
    outcomes = [pusher.push(), pusher.push()]
    sent = [one.code for report in aggregator.reports for one in report.health]
    assert outcomes == [ACCEPTED, ACCEPTED] and sent == list(range(BATCH_MAX + 10))
    assert log.pending() == [] and len(aggregator.requests) == 4
    pusher.push()  # Nothing to send, so nothing is sent.
    assert len(aggregator.requests) == 4


def test_link_down_affects_living_ranks(tree, clock, aggregator):
    Rank(tree / "pages").step({"forward": 1000})
    agent = agent_on(tree, clock, aggregator=aggregator.url)
    agent.poll()
    (tree / "sys/class/net/eth0/carrier").write_text("0\n")
    agent._links_ns = 0
    agent.poll()
    agent.pusher.push()
    ((sent,),) = [report.health for report in aggregator.reports]
    assert (sent.kind, sent.device, sent.hits) == ("link_down", "eth0", [("r1", 0)])
    counted = b'goodput_health_events_total{device="eth0",kind="link_down",severity="warning"} 1.0'
    text = agent.exposition(20.0)
    assert counted in text and b"goodput_health_events_waiting 0.0" in text


def test_failing_phase_attribution_loses_no_event(tree, clock, monkeypatch):
    agent = Agent(str(tree / "pages"), aggregator="http://127.0.0.1:1", sysfs=str(tree / "sys"))
    monkeypatch.setattr(agent.phases, "add_sample", lambda sample: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        agent._receive(Sample("nvml", 1, [], events=[event(code=79)]))
    assert [one.code for one in agent.events.pending()] == [79]


# -- the agent's own log


def test_events_are_logged_with_meaning_and_ranks(log, caplog):
    lost = {"code": 79, "name": "GPU fell off the bus", "text": "to do: reboot_node, 3 times"}
    log.add(event("xid", "GPU-5d", "critical", **lost), [("r1", rank) for rank in (3, 4)])
    log.add(event("xid", "GPU-5d", "critical", **lost), [], "dcgm")  # The same, from another driver.
    log.add(event("link_down", "mlx5_0/1", "critical", text="the link is down"), [])
    log.add(event("throttle", "GPU-1", name="hw_thermal", text="clocks held down: hw_thermal"), [("r\n2", 0)])
    assert caplog.messages == [
        "2023-11-14T22:13:20Z critical: xid 79 on GPU-5d: GPU fell off the bus; 3 times; reboot the node; "
        "affects r1 ranks 3, 4",
        "2023-11-14T22:13:20Z critical: link_down on mlx5_0/1: the link is down; no traffic over this link; affects no rank",
        "2023-11-14T22:13:20Z warning: throttle on GPU-1: clocks held down: hw_thermal; the hardware slows the GPU's "
        "clocks down; check cooling and power; affects r?2 rank 0",
    ]


def test_every_kind_and_action_has_a_meaning():
    from goodput_exporters.events.event_log import REMEDIES, meaning
    from goodput_exporters.gpu.nvidia.xid import ACTIONS

    assert set(REMEDIES) == set(ACTIONS)
    assert all(meaning(event(kind, severity="critical")) for kind in KINDS - {"xid"})
    assert meaning(event("ecc", severity="info")) != meaning(event("ecc", severity="critical"))
    assert meaning(event("new")) == "" and "new on GPU-1: affects no rank" in format_event(event("new"), [])


def test_log_lines_are_rate_limited(clock):
    lines = RateLimitedFormatter(clock.monotonic_ns)
    warnings = [lines.format(event(code=code), []) for code in range(3 * LINES_MAX)]
    assert sum(line is not None for line in warnings) == LINES_MAX / 2
    critical = [lines.format(event("lost", severity="critical"), []) for _ in range(LINES_MAX)]
    written = [line for line in critical if line is not None]
    assert len(written) == LINES_MAX / 2 and written[0].endswith("(50 earlier events omitted from this log)")
    assert "omitted" not in written[1]
    clock.seconds += SECONDS_PER_LINE - 0.1
    assert lines.format(event("lost", severity="critical"), []) is None
    clock.seconds += 0.2
    line = lines.format(event("lost", severity="critical"), [])
    assert line.endswith("(11 earlier events omitted from this log)")
    clock.seconds += 1e6
    assert sum(lines.format(event(severity="critical"), []) is not None for _ in range(99)) == LINES_MAX


def test_log_line_lists_a_few_ranks():
    hits = [("b", 1), *(("a", rank) for rank in range(RANKS_SHOWN + 3))]
    line = format_event(event(), hits)
    assert line.endswith("affects a ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more")
    assert len(format_event(event(text="x" * 10**6), hits)) < 1000


def test_blocked_log_does_not_block_scrapes(log):
    """Standard error may be a pipe that is full."""
    import logging
    import threading

    held, inside = threading.Event(), threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record):
            inside.set()
            held.wait(120)

    stuck = Stuck()
    logging.getLogger("goodput.node").addHandler(stuck)
    writer = threading.Thread(target=log.add, args=(event(), []))
    try:
        writer.start()
        assert inside.wait(120)
        reader = threading.Thread(target=totals, args=(log,))
        reader.start()
        reader.join(60)
        assert not reader.is_alive()
    finally:
        held.set()
        writer.join()
        logging.getLogger("goodput.node").removeHandler(stuck)
