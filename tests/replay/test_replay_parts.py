"""The parts of bench/alert_replay and goodput.simulate: ticks, remote write, rules, alerts, simulated runs and nodes."""

import numpy as np
import pytest
from bench.alert_replay import wire
from bench.alert_replay.aggregator import Aggregator
from bench.alert_replay.evaluate import Evaluation
from bench.alert_replay.planted import PlantedFault, planted
from bench.alert_replay.rules import Rule, RuleError, load, ordered, raw, remembered, seconds
from bench.alert_replay.scrape import ScrapedScenario, Scraper
from bench.alert_replay.ticks import ticks
from bench.alert_replay.verdict import detections, uncovered, unexplained

from goodput.simulate.node import NodeSeries
from goodput.simulate.reports import acknowledge, pending
from goodput.simulate.run import SimulatedRun
from goodput.simulate.scenario import (
    EPOCH_SECONDS,
    AttemptPlan,
    HardwareChange,
    RunFault,
    RunPlan,
    Workload,
    gpu_uuid,
)

PLACES = [("n0", 0), ("n0", 1)]


def test_ticks_are_finer_within_windows():
    found = ticks(600, 60, 20, [(130, 150), (170, 200), (590, 9000)])
    assert found.windows == [(120, 240), (540, 600)]
    fine = {140, 160, 200, 220, 560, 580}
    assert found.times.tolist() == sorted({*range(0, 601, 60), *fine})
    assert found.stretches() == [(0, 600, 60), (120, 240, 20), (540, 600, 20)]
    with pytest.raises(ValueError, match="no multiple"):
        ticks(600, 60, 25)


def test_remote_write_encoding():
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


def test_rules_are_sorted_by_need():
    rules = ordered(load())
    seen: set[str] = set()
    recorded = {rule.name for rule in load() if not rule.alert}
    for rule in rules:
        assert (rule.needs & recorded) - {rule.name} <= seen, rule.name
        seen.add(rule.name)
    assert {"up", "goodput_gpu_seconds", "goodput_gpu_up"} <= raw(rules)
    assert "goodput_gpu_temperature_celsius" not in raw(rules)  # It is for dashboards alone.


def test_durations_and_self_reading_rules():
    assert seconds("1h30m") == 5400 and seconds("250ms") == 0.25 and seconds(0) == 0

    def rule(expr: str) -> Rule:
        names = frozenset({"x:seen", "up"}) if "x:seen" in expr else frozenset({"up"})
        return Rule("x:seen", expr, "g", False, {}, needs=names)

    assert remembered(rule("max(timestamp(up))\nor x:seen > time() - 3600\n")) == (
        "max(timestamp(up))\n",
        3600,
    )
    assert remembered(rule("max(up)")) is None
    with pytest.raises(RuleError, match="not in the form"):
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


def test_group_interval_is_kept():
    """A rule of a group of 1m among ticks of 15 s: one result a minute, and stale only a minute after its last one."""

    class Written:
        def write(self, rows) -> None:
            self.rows = [
                (labels["__name__"], at.tolist(), wire.is_stale(values).tolist())
                for labels, at, values in rows
            ]

    server, found = Written(), ticks(240, 15, 15)
    evaluation = Evaluation(server, found, np.ones(len(found.times), bool))
    evaluation.results = lambda expr: {(): (np.arange(9), np.ones(9))}  # Up to 120 s.
    evaluation._record(Rule("x:y:z", "up", "g", False, {}, interval_seconds=60))
    assert server.rows == [("x:y:z", [EPOCH_SECONDS + at for at in (0, 60, 120, 180)], [False] * 3 + [True])]
    groups = {rule.name: rule.interval_seconds for rule in load()}
    assert groups["run_state:gpu_seconds:change_1m"] == 60 and groups["run_state:gpu_seconds:max"] == 0


def test_self_reading_rule_keeps_its_value():
    positions, values = _evaluation(12)._remember(
        np.array([2, 3]), np.array([1_767_571_320.0, 1_767_571_380.0]), 300
    )
    # Seen last at 180 s: strictly younger than 300 s up to 420 s, where 180 > 480 - 300 is no more.
    assert positions.tolist() == [2, 3, 4, 5, 6, 7] and values[-1] == 1_767_571_380


def _simulated(
    plan: RunPlan, until: float, step: float = 30.0, has_agent=lambda node, at: True
) -> Aggregator:
    run, aggregator = SimulatedRun(plan), Aggregator()
    for at in np.arange(0, until + 1, step):
        run.advance(float(at))
        aggregator.now = float(at)
        for attempt, rank, report in pending(run, float(at), lambda node, at=at: has_agent(node, at)):
            assert aggregator.take(report), aggregator.ingest.counts
            acknowledge(attempt, rank)
    return aggregator


def _states(aggregator: Aggregator, run: str = "r") -> dict[str, float]:
    found = aggregator.scrape()
    return {
        dict(labels)["state"]: value
        for (name, labels), value in found.items()
        if name == "goodput_gpu_seconds" and dict(labels)["run"] == run
    }


def test_account_of_simulated_run_closes():
    attempts = [AttemptPlan(60, 900, PLACES, "killed", startup=40, restore=30, compile=50)]
    attempts.append(AttemptPlan(1000, 1800, PLACES, "finished", startup=40, restore=30, compile=50))
    workload = Workload(
        step=10, checkpoint_every=300, checkpoint=20, evaluation_every=400, evaluation=60, hiccup_every=0
    )
    aggregator = _simulated(RunPlan("r", attempts, workload), 1900)
    states = _states(aggregator)
    assert sum(states.values()) == pytest.approx(2 * (1800 - 60))
    assert states["down"] == pytest.approx(2 * 100, abs=1)
    assert states["startup"] == pytest.approx(2 * 80, abs=25) and states["restore"] == pytest.approx(2 * 30)
    assert states["compile"] == pytest.approx(2 * 100, abs=10)
    assert 0 < states["lost"] <= 2 * (300 + 20 + 60) and states["unobserved"] == 0
    assert states["evaluation"] > 0 and states["checkpoint"] > 0


def test_agent_outage_loses_no_time():
    def plan() -> RunPlan:
        return RunPlan(
            "r", [AttemptPlan(0, 1200, PLACES, "finished")], Workload(step=10, hiccup_every=0), seed=3
        )

    whole, away = (
        _simulated(plan(), 1260),
        _simulated(plan(), 1260, has_agent=lambda node, at: not 300 <= at < 700),
    )
    # What was thinned meanwhile is compared with other ranks in sums, so waiting and its cause are separated less well.
    assert _states(away) == pytest.approx(_states(whole), abs=1)
    assert sum(_states(away).values()) == pytest.approx(sum(_states(whole).values()))


def test_restarted_aggregator_restores_account():
    plan = RunPlan("r", [AttemptPlan(0, 1200, PLACES, "finished")], Workload(step=10))
    aggregator = _simulated(plan, 1260)
    before = _states(aggregator)
    aggregator.start()
    assert _states(aggregator) == pytest.approx(before)


def test_hang_names_its_culprit():
    faults = [RunFault("hang", 300, 1200, rank=1, phase="loader")]
    plan = RunPlan("r", [AttemptPlan(0, 3000, PLACES)], Workload(step=5, hiccup_every=0), faults=faults)
    aggregator = _simulated(plan, 600)
    culprits = [
        dict(labels) for (name, labels) in aggregator.scrape() if name == "goodput_hang_culprit_seconds"
    ]
    assert culprits == [{"run": "r", "rank": "1", "host": "n0", "phase": "loader"}]


def _node() -> NodeSeries:
    times = np.arange(0, 601, 60.0)
    return NodeSeries("n0", times, np.ones((2, len(times))), np.zeros(len(times)))


def test_hardware_change_affects_only_its_series():
    node = _node()
    sound = {key: values.copy() for key, values in node.series([]).items()}
    node.apply(HardwareChange("n0", "goodput_gpu_up", (("gpu", gpu_uuid("n0", 1)),), 120, 240, "set", 0))
    node.apply(HardwareChange("n0", "goodput_host_tcp_retransmits_total", (), 300, 360, "jump", 500))
    labels = (("class", "bus"), ("gpu", gpu_uuid("n0", 0)), ("xid", "79"))
    node.apply(HardwareChange("n0", "goodput_gpu_xid_errors_total", labels, 180, 0, "born", 1))
    broken = node.series([])
    changed = {
        key
        for key in broken
        if key not in sound or not np.array_equal(broken[key], sound[key], equal_nan=True)
    }
    up, xid = ("goodput_gpu_up", (("gpu", gpu_uuid("n0", 1)),)), ("goodput_gpu_xid_errors_total", labels)
    assert changed == {up, xid, ("goodput_host_tcp_retransmits_total", ())}
    assert broken[up].tolist() == [1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert np.isnan(broken[xid][:3]).all() and broken[xid][3:].tolist() == [1] * 8
    with pytest.raises(KeyError, match="catalogue"):
        node.apply(HardwareChange("n0", "goodput_gpu_up", (("device", "eth0"),), 0, 1, "set", 0))


def test_agent_restart_resets_only_its_counters():
    found = _node().series([300.0])
    own, kernel = ("goodput_node_cpu_seconds_total", ()), ("goodput_host_tcp_retransmits_total", ())
    assert found[own][5] == 0 and (np.diff(found[own])[[3, 5]] > 0).all()
    assert (np.diff(found[kernel]) > 0).all()


def test_aggregator_abandons_a_dead_run_for_good():
    """Its failure is no longer exposed after a day, also after a restart; nor is a declared end forgotten."""
    aggregator = _simulated(RunPlan("r", [AttemptPlan(0, 600, PLACES, "killed")], Workload(step=8)), 900)

    def found(now: float) -> tuple[str, bool]:
        aggregator.now = now
        aggregator.scrape({"up"})
        account = aggregator.accounts.account("r")
        return account.status, account.may_restart

    assert [found(at) for at in (80_000, 88_000)] == [("failed", True), ("failed", False)]
    aggregator.start()
    assert found(88_020) == ("failed", False)
    aggregator.end("r", "cancelled")
    aggregator.start()
    assert found(88_900) == ("cancelled", False)


def test_every_alert_has_a_planted_fault():
    _, faults = planted(30)
    found = detections(faults, [])
    names = (
        "GoodputAgentDown",
        "GoodputAggregatorDown",
        "GoodputRunFailed",
        "GoodputRunStalled",
    )  # Each has two severities, of which none has fired.
    unseen = [f"{name} ({severity})" for name in names for severity in ("critical", "warning")]
    assert uncovered(load(), found) == unseen
    assert uncovered(load(), found[1:]) == sorted([*unseen, faults[0].alert])


def test_fault_is_detected_only_by_its_alert_and_place():
    fault = PlantedFault("A", "", 600, 900, 120, (("run", "x"),))

    class _Firing:
        def __init__(self, alert, at, **labels):
            self.alert, self.at, self.labels, self.resolved = alert, at, labels, at + 60.0

    early, other = _Firing("A", 300, run="x"), _Firing("A", 650, run="y")
    late, mine = _Firing("A", 800, run="x"), _Firing("A", 660, run="x")
    assert (
        detections([fault], [early, other])[0].delay is None and detections([fault], [early, other])[0].late
    )
    assert detections([fault], [late])[0].late
    assert detections([fault], [early, mine])[0].delay == 60 and not detections([fault], [mine])[0].late
    assert unexplained([fault], [early, other, mine]) == [early, other]


def test_reports_are_thinned_but_have_the_newest_step():
    plan = RunPlan(
        "r",
        [AttemptPlan(0, 9000, PLACES, startup=0)],
        Workload(step=10, hiccup_every=0, checkpoint_every=1e9),
    )
    run = SimulatedRun(plan)
    run.advance(3000)
    [(attempt, _, first), _] = list(pending(run, 3000, lambda node: True))
    assert first.steps[-1].number == attempt.steps_done and [row.number for row in first.steps[:12]] == [
        *range(1, 13)
    ]
    assert len(first.steps) < attempt.steps_done / 4
    assert tuple(attempt.rows[-1].totals[0]) == first.steps[-1].totals
    run.advance(3600)
    [_, (attempt, _, second)] = list(pending(run, 3600, lambda node: True))
    assert second.steps[-1].number == attempt.steps_done > first.steps[-1].number


def test_outage_marks_series_stale_once():
    runs = [RunPlan("r", [AttemptPlan(0, 9000, PLACES)], Workload(step=10))]
    away = {"n0": [(300.0, 500.0)]}
    scenario = ScrapedScenario(
        {"n0": 2}, runs, agent_outages=away, aggregator_outages=[(600.0, 700.0)], ticks=ticks(900, 60, 60)
    )
    wanted = {"up", "goodput_gpu_up", "goodput_rank_alive", "goodput_aggregator_runs"}
    found = {}
    for labels, times, values in Scraper(scenario, wanted).series():
        stale = [int(at - EPOCH_SECONDS) for at in times[wire.is_stale(values)]]
        found.setdefault((labels["__name__"], labels["job"]), []).append((stale, len(times)))
    assert found["goodput_gpu_up", "goodput-node"] == [([300], 13)] * 2
    assert found["goodput_rank_alive", "goodput-node"] == [([300], 13)] * 2
    assert found["goodput_aggregator_runs", "goodput-aggregator"] == [([600], 15)]
    assert found["up", "goodput-node"] == [([], 16)]
