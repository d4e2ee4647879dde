"""The pieces of bench/alert_replay: moments, the wire, rules, what becomes of an alert, pages of simulated ranks."""

import numpy as np
import pytest
from bench.alert_replay import wire
from bench.alert_replay.aggregator import Aggregator
from bench.alert_replay.evaluate import Evaluation
from bench.alert_replay.hardware import Change, Node
from bench.alert_replay.planted import Fault, planted
from bench.alert_replay.reports import acknowledge, push
from bench.alert_replay.rules import Rule, RuleError, load, ordered, raw, remembered, seconds
from bench.alert_replay.ticks import ticks
from bench.alert_replay.trainer import EPOCH_SECONDS, Habits, Job, Start, Trouble
from bench.alert_replay.verdict import strays, told, uncovered
from bench.alert_replay.world import Recorder, World

PLACES = [("n0", 0), ("n0", 1)]


def test_moments_are_the_coarse_grid_and_the_fine_one_in_windows():
    found = ticks(600, 60, 20, [(130, 150), (170, 200), (590, 9000)])
    assert found.windows == [(120, 240), (540, 600)]
    fine = {140, 160, 200, 220, 560, 580}
    assert found.times.tolist() == sorted({*range(0, 601, 60), *fine})
    assert found.stretches() == [(0, 600, 60), (120, 240, 20), (540, 600, 20)]
    with pytest.raises(ValueError, match="no multiple"):
        ticks(600, 60, 25)


def test_a_sample_on_the_wire_is_what_the_protocol_says():
    at = np.array([1_767_571_200_123])
    body = wire.request([({"b": "x", "__name__": "up"}, at, np.array([1.5]))])
    label_name, label_b = b"\x0a\x0e\x0a\x08__name__\x12\x02up", b"\x0a\x06\x0a\x01b\x12\x01x"
    sample = b"\x12\x10\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10"
    varint, left = b"", int(at[0])
    while left:
        varint, left = varint + bytes([left & 0x7F | (0x80 if left > 0x7F else 0)]), left >> 7
    series = label_name + label_b + sample + varint
    message = b"\x0a" + bytes([len(series)]) + series
    assert body == bytes([len(message)]) + b"\xf8" + (len(message) - 1).to_bytes(3, "little") + message
    with pytest.raises(ValueError, match="six bytes"):
        wire.request([({"__name__": "up"}, np.array([5]), np.array([1.0]))])
    assert wire.is_stale(np.array([wire.STALE, np.nan, 1.0])).tolist() == [True, False, False]


def test_rules_come_after_what_they_need_and_only_if_they_are_needed():
    rules = ordered(load())
    seen: set[str] = set()
    recorded = {rule.name for rule in load() if not rule.alert}
    for rule in rules:
        assert (rule.needs & recorded) - {rule.name} <= seen, rule.name
        seen.add(rule.name)
    assert {"up", "goodput_gpu_seconds", "goodput_gpu_up"} <= raw(rules)
    assert "goodput_gpu_temperature_celsius" not in raw(rules)  # It is for dashboards alone.


def test_durations_and_rules_that_remember():
    assert seconds("1h30m") == 5400 and seconds("250ms") == 0.25 and seconds(0) == 0

    def rule(expr: str) -> Rule:
        names = frozenset({"x:seen", "up"}) if "x:seen" in expr else frozenset({"up"})
        return Rule("x:seen", expr, "g", False, {}, needs=names)

    assert remembered(rule("max(timestamp(up))\nor x:seen > time() - 3600\n")) == (
        "max(timestamp(up))\n",
        3600,
    )
    assert remembered(rule("max(up)")) is None
    with pytest.raises(RuleError, match="not known"):
        remembered(rule("x:seen + up"))


def _evaluation(count: int) -> Evaluation:
    found = ticks((count - 1) * 60, 60, 60)
    return Evaluation(None, found, np.ones(count, bool))


@pytest.mark.parametrize(
    ("hold", "keep", "held", "expected"),
    [
        (0, 0, [3, 4, 7], [(180, 300), (420, 480)]),
        (120, 0, [3, 4, 5, 6], [(300, 420)]),
        (120, 0, [3, 4, 6, 7], []),  # A gap begins `for` anew.
        (60, 0, [8, 9], [(540, float("inf"))]),
        (60, 180, [1, 2], [(120, 360)]),  # Kept from the first moment without it on, for 180 s.
        (60, 180, [1, 2, 4], [(120, 480)]),
    ],
)
def test_for_and_keep_firing_for(hold, keep, held, expected):
    rule = Rule("A", "up", "g", True, {}, hold_seconds=hold, keep_seconds=keep)
    fired = _evaluation(10)._firings(rule, (), np.array(held))
    assert [(one.at, one.resolved) for one in fired] == expected


def test_a_rule_remembers_for_as_long_as_it_says():
    positions, values = _evaluation(12)._remember(
        np.array([2, 3]), np.array([1_767_571_320.0, 1_767_571_380.0]), 300
    )
    # Seen last at 180 s: strictly younger than 300 s up to 420 s, where 180 > 480 - 300 is no more.
    assert positions.tolist() == [2, 3, 4, 5, 6, 7] and values[-1] == 1_767_571_380


def _lived(job: Job, until: float, step: float = 30.0, has_agent=lambda node, at: True) -> Aggregator:
    aggregator = Aggregator()
    for at in np.arange(0, until + 1, step):
        job.advance(float(at))
        aggregator.now = float(at)
        for life, rank, report in push(job, float(at), lambda node, at=at: has_agent(node, at)):
            assert aggregator.take(report), aggregator.ingest.counts
            acknowledge(life, rank)
    return aggregator


def _states(aggregator: Aggregator, run: str = "r") -> dict[str, float]:
    found = aggregator.scrape()
    return {
        dict(labels)["state"]: value
        for (name, labels), value in found.items()
        if name == "goodput_gpu_seconds" and dict(labels)["run"] == run
    }


def test_a_simulated_run_becomes_an_account_that_closes():
    starts = [Start(60, 900, PLACES, "killed", startup=40, restore=30, compile=50)]
    starts.append(Start(1000, 1800, PLACES, "finished", startup=40, restore=30, compile=50))
    habits = Habits(
        step=10, checkpoint_every=300, checkpoint=20, evaluation_every=400, evaluation=60, hiccup_every=0
    )
    aggregator = _lived(Job("r", starts, habits), 1900)
    states = _states(aggregator)
    assert sum(states.values()) == pytest.approx(2 * (1800 - 60))
    assert states["down"] == pytest.approx(2 * 100, abs=1)
    assert states["startup"] == pytest.approx(2 * 80, abs=25) and states["restore"] == pytest.approx(2 * 30)
    assert states["compile"] == pytest.approx(2 * 100, abs=10)
    assert 0 < states["lost"] <= 2 * (300 + 20 + 60) and states["unobserved"] == 0
    assert states["evaluation"] > 0 and states["checkpoint"] > 0


def test_an_agent_that_was_away_loses_no_time():
    def job() -> Job:
        return Job("r", [Start(0, 1200, PLACES, "finished")], Habits(step=10, hiccup_every=0), seed=3)

    whole, away = _lived(job(), 1260), _lived(job(), 1260, has_agent=lambda node, at: not 300 <= at < 700)
    # What was thinned meanwhile is compared with other ranks in sums, so waiting and its cause are told apart less well.
    assert _states(away) == pytest.approx(_states(whole), abs=1)
    assert sum(_states(away).values()) == pytest.approx(sum(_states(whole).values()))


def test_a_restarted_aggregator_is_whole_again():
    job = Job("r", [Start(0, 1200, PLACES, "finished")], Habits(step=10))
    aggregator = _lived(job, 1260)
    before = _states(aggregator)
    aggregator.start()
    assert _states(aggregator) == pytest.approx(before)


def test_a_hang_has_its_culprit():
    troubles = [Trouble("hang", 300, 1200, rank=1, phase="loader")]
    job = Job("r", [Start(0, 3000, PLACES)], Habits(step=5, hiccup_every=0), troubles=troubles)
    aggregator = _lived(job, 600)
    culprits = [
        dict(labels) for (name, labels) in aggregator.scrape() if name == "goodput_hang_culprit_seconds"
    ]
    assert culprits == [{"run": "r", "rank": "1", "host": "n0", "phase": "loader"}]


def _node(**given) -> Node:
    times = np.arange(0, 601, 60.0)
    return Node("n0", 2, times, np.ones((2, len(times))), np.zeros(len(times)), **{"seed": 1, **given})


def test_hardware_changes_what_it_is_told_and_nothing_else():
    node = _node()
    sound = {key: values.copy() for key, values in node.series([]).items()}
    node.change(Change("n0", "goodput_gpu_up", (("gpu", "GPU-n0-1"),), 120, 240, "set", 0))
    node.change(Change("n0", "goodput_host_tcp_retransmits_total", (), 300, 360, "jump", 500))
    labels = (("class", "bus"), ("gpu", "GPU-n0-0"), ("xid", "79"))
    node.change(Change("n0", "goodput_gpu_xid_errors_total", labels, 180, 0, "born", 1))
    broken = node.series([])
    changed = {
        key
        for key in broken
        if key not in sound or not np.array_equal(broken[key], sound[key], equal_nan=True)
    }
    up, xid = ("goodput_gpu_up", (("gpu", "GPU-n0-1"),)), ("goodput_gpu_xid_errors_total", labels)
    assert changed == {up, xid, ("goodput_host_tcp_retransmits_total", ())}
    assert broken[up].tolist() == [1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert np.isnan(broken[xid][:3]).all() and broken[xid][3:].tolist() == [1] * 8
    with pytest.raises(KeyError, match="catalogue"):
        node.change(Change("n0", "goodput_gpu_up", (("device", "eth0"),), 0, 1, "set", 0))


def test_an_agent_counts_its_own_from_its_start_and_the_kernels_goes_on():
    found = _node().series([300.0])
    own, kernel = ("goodput_node_cpu_seconds_total", ()), ("goodput_host_tcp_retransmits_total", ())
    assert found[own][5] == 0 and (np.diff(found[own])[[3, 5]] > 0).all()
    assert (np.diff(found[kernel]) > 0).all()


def test_every_alert_has_a_fault():
    _, faults = planted(30)
    assert uncovered(load(), faults) == []
    assert uncovered(load(), faults[1:]) == [faults[0].alert]


def test_a_fault_is_told_only_by_its_own_alert_on_its_own_place():
    fault = Fault("A", "", 600, 900, 120, (("run", "x"),))

    class _Firing:
        def __init__(self, alert, at, **labels):
            self.alert, self.at, self.labels, self.resolved = alert, at, labels, at + 60.0

    early, other = _Firing("A", 300, run="x"), _Firing("A", 650, run="y")
    late, mine = _Firing("A", 800, run="x"), _Firing("A", 660, run="x")
    assert told([fault], [early, other])[0].delay is None and told([fault], [early, other])[0].late
    assert told([fault], [late])[0].late
    assert told([fault], [early, mine])[0].delay == 60 and not told([fault], [mine])[0].late
    assert strays([fault], [early, other, mine]) == [early, other]


def test_a_report_brings_the_newest_step_and_thinned_ones_lose_no_time():
    job = Job("r", [Start(0, 9000, PLACES, startup=0)], Habits(step=10, hiccup_every=0, checkpoint_every=1e9))
    job.advance(3000)
    [(life, _, first), _] = list(push(job, 3000, lambda node: True))
    assert first.steps[-1].number == life.done and [row.number for row in first.steps[:12]] == [*range(1, 13)]
    assert len(first.steps) < life.done / 4 and life.rows[-1].totals[0] == list(first.steps[-1].totals)
    job.advance(3600)
    [_, (life, _, second)] = list(push(job, 3600, lambda node: True))
    assert second.steps[-1].number == life.done > first.steps[-1].number


def test_what_is_gone_is_marked_stale_once():
    jobs = [Job("r", [Start(0, 9000, PLACES)], Habits(step=10))]
    away = {"n0": [(300.0, 500.0)]}
    plan = World(ticks(900, 60, 60), {"n0": 2}, jobs, agent_away=away, aggregator_away=[(600.0, 700.0)])
    wanted = {"up", "goodput_gpu_up", "goodput_rank_alive", "goodput_aggregator_runs"}
    found = {}
    for labels, times, values in Recorder(plan, wanted).series():
        stale = [int(at - EPOCH_SECONDS) for at in times[wire.is_stale(values)]]
        found.setdefault((labels["__name__"], labels["job"]), []).append((stale, len(times)))
    assert found["goodput_gpu_up", "goodput-node"] == [([300], 13)] * 2
    assert found["goodput_rank_alive", "goodput-node"] == [([300], 13)] * 2
    assert found["goodput_aggregator_runs", "goodput-aggregator"] == [([600], 15)]
    assert found["up", "goodput-node"] == [([], 16)]
