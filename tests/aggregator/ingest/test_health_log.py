"""Health events: order-free merging, bounds, durability, and attribution of costs."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.account.account_history import Process, ns, run_of
from support.aggregator.ledgers import NOW, aggregator, contents, read_only, take
from support.aggregator.reports import body_of, health_event, rank_report
from support.aggregator.serve_process import push, samples, serving
from support.aggregator.shapes import assert_shape
from support.browser import chromium, dom_of, needs_chromium
from support.seeds import cases

from goodput.account import compute
from goodput.aggregator.accounts.health_costs import HealthEvents, RunHealthEvents, restart_costs
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest import health_log as health_module
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.wire import schema


def kept(log: HealthLog) -> dict:
    return dict(log.all())


# ---- What is kept

events = st.builds(
    lambda number, seconds, severity, ranks: health_event(number, seconds, *ranks, severity=severity),
    st.integers(0, 40),
    st.integers(1, 30),
    st.sampled_from(["info", "warning", "critical"]),
    st.lists(st.integers(0, 3), max_size=3),
)
pushes = st.lists(
    st.tuples(st.sampled_from(["n0", "n1"]), events), max_size=30, unique_by=lambda e: (e[0], e[1].number)
)


@settings(max_examples=60)
@given(pushes, st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(given_pushes, chance):
    one, other = HealthLog(), HealthLog()
    new = [one.add(*item, now_ns=NOW) for item in given_pushes]
    assert all(new) and not any(one.add(*item, now_ns=NOW) for item in given_pushes)
    shuffled = given_pushes + chance.sample(given_pushes, len(given_pushes) // 2)
    chance.shuffle(shuffled)
    for item in shuffled:
        other.add(*item, now_ns=NOW)
    assert kept(one) == kept(other) and one.counts == other.counts
    assert sorted(one.of_run("r1")) == sorted((k, e) for k, e in kept(one).items() if e.hits)


@pytest.mark.parametrize("seed", cases(20))
def test_node_bound_drops_oldest_info_first(monkeypatch, seed):
    monkeypatch.setattr(health_module, "NODE_WEIGHT_MAX", 10)
    rng, log = random.Random(seed), HealthLog()
    given_events = [
        health_event(n, rng.random() * 9, severity=rng.choice(["info", "warning", "critical"]))
        for n in range(30)
    ]
    for one in given_events:
        log.add("n0", one)
        log.add("n1", one) if one.number < 5 else None
    order = {"info": 0, "warning": 1, "critical": 2}
    best = sorted(given_events, key=lambda e: (order[e.severity], e.time_ns), reverse=True)[:10]
    assert {e.number for (node, _), e in log.all() if node == "n0"} == {e.number for e in best}
    assert log.counts["dropped", "full"] == 20 and sum(node == "n1" for (node, _), _ in log.all()) == 5
    before = kept(log)
    for one in rng.sample(given_events, 30):
        assert not log.add("n0", one), "dropped events are not taken again"
    assert kept(log) == before


def test_total_bound_counts_hit_processes(monkeypatch):
    monkeypatch.setattr(health_module, "WEIGHT_MAX", 40)
    log = HealthLog()
    for n in range(300):
        log.add(f"n{n}", health_event(1, n, 0, 1, 2, severity="info", run=f"r{n}"))
    # Each weighs four.
    assert sorted(node for (node, _), _ in log.all()) == sorted(f"n{n}" for n in range(290, 300))
    assert log.of_run("r0") == [] and len(log.of_run("r299")) == 1
    assert log.counts["dropped", "full"] == 290 and len(log) == 10
    assert [len(log._entries), len(log._by_run), len(log._weights)] == [10, 10, 11], "nothing else grows"


@pytest.mark.parametrize("seed", cases(10))
def test_dropped_events_leave_no_index_entries(monkeypatch, seed):
    monkeypatch.setattr(health_module, "NODE_WEIGHT_MAX", 12)
    monkeypatch.setattr(health_module, "WEIGHT_MAX", 30)
    rng, log = random.Random(seed), HealthLog()
    for _ in range(600):
        # Numbers are reused with other contents: the first one stays unless it was dropped.
        severity = rng.choice(["info", "warning", "critical"])
        ranks = range(rng.randrange(4))
        log.add(
            f"n{rng.randrange(5)}",
            health_event(rng.randrange(40), rng.randrange(99), *ranks, severity=severity),
        )
        weights = {key: 1 + len(one.hits) for key, one in log.all()}
        assert log._weights[False] == sum(weights.values()) <= 30
        for (is_scoped, node), entries in log._entries.items():
            assert sorted(entry[-1] for entry in entries) == sorted(n for name, n in weights if name == node)
            weight = sum(w for (name, _), w in weights.items() if name == node)
            assert log._weights[is_scoped, node] == weight <= 12
        assert {node for _, node in log._entries} == {node for node, _ in weights}
        assert {key for key, one in log.all() if one.hits} == {key for key, _ in log.of_run("r1")}


def test_flooding_node_stays_within_its_bound(monkeypatch):
    monkeypatch.setattr(health_module, "NODE_WEIGHT_MAX", 10)
    log = HealthLog()
    for n in range(2000):
        log.add("n0", health_event(n, n, 0))
    assert [e.number for _, e in sorted(log.all())] == list(range(1995, 2000))
    assert len(log._entries[False, "n0"]) == 5


@pytest.mark.parametrize(
    ("node", "wrong"),
    [
        ("n0", {"kind": ""}),
        ("n0", {"severity": "fatal"}),
        ("n0", {"text": "x" * 256}),
        ("n0", {"name": "a\x1b[2J"}),
        ("n0", {"code": -1}),
        ("", {}),
        ("n\n0", {}),
        ("n" * 256, {}),
    ],
)
def test_invalid_event_is_counted_and_rest_accepted(ledger, node, wrong):
    ingest = aggregator(ledger)
    report = rank_report(Process().steps(2, forward=1))
    bad = health_event(1, 5, 0, **wrong)
    (ack,) = take(
        ingest,
        body_of(report, node=node, health=[bad, health_event(-1, 5), health_event(3, NOW / 1e9 + 90_000)]),
    )
    assert ack.accepted == 1 and len(ingest.health) == 0
    counts = ingest.health.counts
    assert counts["dropped", "malformed"] == (2 if node == "n0" else 3)
    assert counts["dropped", "time"] == (1 if node == "n0" else 0)
    (ack,) = take(ingest, body_of(report, node="n0", health=[health_event(1, 5, 0)]))
    assert len(ingest.health) == 1 and list(ledger.health(10)) == [("n0", health_event(1, 5, 0))]


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        None,
        [],
        {},
        {"number": "1", "kind": "xid", "device": "d", "time_ns": 5},
        {"number": 2**63, "kind": "xid", "device": "d", "time_ns": 5},
        {"number": 1, "kind": "xid", "device": "d", "time_ns": 5, "hits": [["r1"]]},
        {"number": 1, "kind": b"xid", "device": "d", "time_ns": 5},
    ],
)
def test_malformed_event_does_not_reject_the_report(ledger, wrong):
    ingest, good = aggregator(ledger), health_event(2, 5, 0)
    report = {"node": "n0", "sent_ns": 1, "ranks": [rank_report(Process().steps(2, forward=1))]}
    (ack,) = take(ingest, msgspec.msgpack.encode({**report, "health": [wrong, good, wrong]}))
    assert ack.accepted == 1 and kept(ingest.health) == {("n0", 2): good}
    assert ingest.health.counts["dropped", "malformed"] == 2
    (refused,) = take(ingest, msgspec.msgpack.encode({**report, "health": [wrong] * 1025}))
    assert isinstance(refused, schema.SchemaError)


# ---- The ledger


def test_acknowledged_events_survive_a_restart(ledger, url, monkeypatch):
    ingest = aggregator(ledger)
    reported = [
        health_event(n, n, n % 2, name="GPU has fallen off the bus", code=79, text="é 🚀")
        for n in range(1, 6)
    ]
    for one in reported:
        (ack,) = take(ingest, body_of(node="n0", health=[one]))
        assert (ack.accepted, ack.rejected) == (0, [])
        assert ("n0", one) in list(ledger.health(10))
    take(ingest, body_of(node="n1", health=reported[:1]))
    before = contents(url)
    take(ingest, body_of(node="n1", health=reported[:1]), body_of(node="n0", health=reported[::-1]))
    assert contents(url) == before
    again = aggregator(ledger)
    assert kept(again.health) == kept(ingest.health) and len(again.health) == 6
    assert again.health.counts == {}, "what was counted before the restart is not counted again"
    monkeypatch.setattr(health_module, "NODE_WEIGHT_MAX", 4)
    again = aggregator(ledger)
    assert len(again.health) == 3
    assert again.health.counts == {}, "what was counted before the restart is not counted again"


def test_ledger_reads_most_severe_events_per_node(ledger):
    ingest = aggregator(ledger)
    severities = ["info", "critical", "warning"]
    many = [health_event(n, 100 - n, severity=severities[n % 3]) for n in range(30)]
    take(
        ingest,
        body_of(node="noisy", health=many),
        body_of(node="calm", health=[health_event(7, 1, severity="info")]),
    )
    found = list(ledger.health(12))
    assert [e.number for node, e in found if node == "noisy"] == sorted([*range(1, 30, 3), 2, 5])
    assert [e.number for node, e in found if node == "calm"] == [7]


def test_unwritten_events_go_with_the_next_push(ledger, url, monkeypatch):
    ingest = aggregator(ledger)
    mend = read_only(ledger, url)
    for number in range(1, 5):
        (answer, again) = take(ingest, *[body_of(node="n0", health=[health_event(number, number)])] * 2)
        assert isinstance(answer, LedgerError) and isinstance(again, LedgerError)
    monkeypatch.setattr(health_module, "NODE_WEIGHT_MAX", 3)
    take(ingest, body_of(node="n0", health=[health_event(5, 5)]))
    assert sorted(ingest._unwritten_health) == [("n0", n) for n in (3, 4, 5)], "bounded as memory is"
    mend()
    assert list(ledger.health(10)) == []
    (ack,) = take(ingest, body_of(rank_report(Process())))
    assert ack.accepted == 1 and ingest._unwritten_health == {}
    assert [e.number for _, e in ledger.health(10)] == [3, 4, 5]


def test_events_during_a_failed_write_are_kept(ledger):
    ingest, began, may_fail = aggregator(ledger), threading.Event(), threading.Event()

    class Failing:
        def append(self, batch, health, *more):
            began.set()
            assert may_fail.wait(120)
            raise LedgerError("no")

    async def together():
        ingest._ledger = Failing()
        first = asyncio.create_task(ingest.accept(body_of(node="n0", health=[health_event(1, 1)])))
        await asyncio.to_thread(began.wait, 10)
        second = asyncio.create_task(ingest.accept(body_of(node="n0", health=[health_event(2, 2)])))
        await asyncio.sleep(0)
        may_fail.set()
        answers = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(answer, LedgerError) for answer in answers)
        ingest._ledger = ledger
        await ingest.accept(body_of(rank_report(Process())))

    asyncio.run(together())
    assert [e.number for _, e in ledger.health(10)] == [1, 2]


# ---- What they have cost


def died_and_resumed(gap: float = 5, end: str = "killed"):
    """Two ranks of a GPU each at 3.6 dollars an hour: 10 s of steps, dead at 1010; again at 1015, from step 6 on."""
    first = [Process(r, start=1000, gpu_hour_cost=3.6).steps(10, forward=1) for r in (0, 1)]
    first = [getattr(one, end)() for one in first]
    second = [Process(r, 2, 1010 + gap, gpu_hour_cost=3.6).resumed(6).between(none=2) for r in (0, 1)]
    return first, [one.steps(5, forward=1).finished() for one in second]


def costs_of(processes, *given) -> dict[int, float]:
    run = run_of(*processes)
    account = compute(run, ns(3000))
    found = restart_costs(run, account, [(("n0", one.number), one) for one in given])
    return {number: cost / 1e9 for (_, number), cost in found.items()}


# Down 5 s, lost steps 7, 8 and 9, startup 2 s, for each of two GPUs.
RESTART = 2 * (5 + 3 + 2)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ([health_event(1, 1004, 0)], {1: RESTART}),
        ([health_event(1, 1004, 0), health_event(2, 1006, 1)], {1: RESTART}),
        ([health_event(1, 1004, 0), health_event(2, 1006, 1, severity="critical")], {2: RESTART}),
        (
            [health_event(1, 1007, 0, severity="critical"), health_event(2, 1006, 1, severity="critical")],
            {2: RESTART},
        ),
        ([health_event(1, 1010 - 600, 0)], {1: RESTART}),
        ([health_event(1, 1010 - 601, 0)], {}),
        ([health_event(1, 1010 + 60, 0)], {1: RESTART}),
        ([health_event(1, 1010 + 61, 0)], {}),
        ([health_event(1, 1004, 2)], {}),
        ([health_event(1, 1004)], {}),
        ([health_event(1, 1004, 0, run="other")], {}),
        ([health_event(1, 1005, 1, 0, 1)], {1: RESTART}),
    ],
)
def test_restart_is_attributed_to_one_event(given, want):
    first, second = died_and_resumed()
    for order in (given, given[::-1]):
        assert costs_of([*first, *second], *order) == want


def test_only_failures_with_a_restart_cost():
    hit = health_event(1, 1004, 0, 1)
    for end, want in (("killed", {1: RESTART}), ("failed", {1: RESTART}), ("finished", {})):
        first, second = died_and_resumed(end=end)
        assert costs_of([*first, *second], hit) == want, end
    first, second = died_and_resumed()
    assert costs_of(first, hit) == {}, "nothing was restarted yet"
    # Nobody saw the end, such as when the node died with it: the rank began anew, so it was one.
    first, second = died_and_resumed(end="silent")
    assert costs_of([*first, *second], hit) == {1: RESTART}
    assert costs_of(first, hit) == {}
    # Of a rank that was not hit the failure does not count, the restart is of all ranks all the same.
    first, second = died_and_resumed()
    first[1].alive, first[1].ended, first[1].end_ns = True, "finished", first[1].now_ns
    assert costs_of([*first, *second], health_event(1, 1004, 1)) == {}
    assert costs_of([*first, *second], health_event(1, 1004, 0))[1] > 0


def test_one_event_may_cost_several_restarts():
    processes, start = [], 1000.0
    for attempt in (1, 2, 3):
        one = Process(0, attempt, start).steps(4, forward=1)
        processes.append(one.killed() if attempt < 3 else one.finished())
        start += 10
    account = compute(run_of(*processes), ns(3000))
    assert len(account.restarts) == 2
    whole = sum(restart.gpu_ns() for restart in account.restarts) / 1e9
    assert costs_of(processes, health_event(1, 1001, 0), health_event(2, 1012, 0)) == {1: whole}
    found = costs_of(processes, health_event(1, 1001, 0), health_event(2, 1012, 0, severity="critical"))
    assert found == {2: whole}, (
        "the critical one is first for both, as it is within a minute after the first end"
    )
    late = [health_event(1, 1001, 0), health_event(2, 1012, 0)]
    assert sum(costs_of(processes, *late).values()) == whole


# ---- Over HTTP


@pytest.fixture
def served(tmp_path):
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        client.base = time.time() - 500
        first, second = died_and_resumed()
        shift = ns(client.base - 1000)
        for one in (*first, *second):
            moved = rank_report(_moved(one, shift), run="r/1")
            assert push(client, moved).accepted == 1
        at = client.base - 1000
        push(client, node="n0", health=[
            health_event(1, at + 1004, 0, run="r/1", code=79, name="fallen", severity="critical", text="<b>off</b>"),
            health_event(2, at + 1200, 0, run="r/1", kind="brand_new", severity="info"),
        ])  # fmt: skip
        mixed = schema.Health(1, "link_flap", "mlx5_0", ns(at + 1007), hits=[("r/1", 1), ("other", 3)])
        push(client, node="n1", health=[mixed])
        yield client


def _moved(one: Process, shift: int) -> Process:
    """The same life so much later."""
    for name in ("start_ns", "now_ns", "last_ns", "beat_ns"):
        setattr(one, name, getattr(one, name) + shift)
    one.end_ns += shift if one.end_ns else 0
    one.rows = [row._replace(start_ns=row.start_ns + shift, end_ns=row.end_ns + shift) for row in one.rows]
    one.events = [e._replace(time_ns=e.time_ns + shift) for e in one.events]
    return one


def test_run_events_are_newest_first_with_cost(served):
    answer = served.get(f"/api/v1/runs/{quote('r/1', safe='')}/health").json()
    assert_shape(answer, RunHealthEvents)
    assert answer == served.get("/api/v1/runs/r/1/health").json() and answer["run"] == "r/1"
    found = answer["events"]
    assert [(e["node"], e["number"]) for e in found] == [("n0", 2), ("n1", 1), ("n0", 1)]
    assert [e["gpu_seconds"] for e in found] == [None, None, RESTART]
    assert found[2]["cost"] == pytest.approx(RESTART * 0.001) and found[0]["cost"] is None
    assert found[1]["hits"] == [{"run": "r/1", "rank": 1}], "of this run alone"
    assert (found[2]["kind"], found[2]["code"], found[2]["text"]) == ("xid", 79, "<b>off</b>")
    (restart,) = served.get("/api/v1/runs/r%2F1").json()["restarts"]
    assert restart["gpu_seconds"] == RESTART
    assert served.get("/api/v1/runs/none/health").status_code == 404
    (only,) = served.get("/api/v1/runs/r/1/health?severity=critical").json()["events"]
    assert only == found[2]
    # An earlier event that is reported late takes the restart over.
    earlier = health_event(0, served.base + 2, 1, run="r/1", severity="critical")
    push(served, node="n1", health=[earlier])
    found = served.get("/api/v1/runs/r/1/health").json()["events"]
    assert [(e["node"], e["number"], e["gpu_seconds"]) for e in found[2:]] == [
        ("n0", 1, None),
        ("n1", 0, RESTART),
    ]


def test_all_events_and_their_filters(served):
    def numbers(query: str) -> list[tuple]:
        answer = served.get(f"/api/v1/health?{query}")
        assert answer.status_code == 200, answer.text
        assert_shape(answer.json(), HealthEvents)
        return [(e["node"], e["number"]) for e in answer.json()["events"]]

    everything = [("n0", 2), ("n1", 1), ("n0", 1)]
    assert numbers("") == everything
    assert numbers("limit=2") == everything[:2]
    assert numbers("node=n1") == [("n1", 1)] and numbers("node=n9") == []
    assert numbers("severity=critical") == [("n0", 1)]
    assert numbers("run=other") == [("n1", 1)] and numbers("run=r/1&node=n0") == [("n0", 2), ("n0", 1)]
    assert numbers(f"since={served.base + 100}") == [("n0", 2)]
    assert len(served.get("/api/v1/health?node=n1").json()["events"][0]["hits"]) == 2
    for wrong in ("severity=fatal", "limit=0", "limit=1001", "since=x", "since=1e300", "since=nan"):
        assert served.get(f"/api/v1/health?{wrong}").status_code == 422, wrong


def test_series_count_events_with_bounded_kinds(served):
    found = samples(served)
    received = {
        key[1:]: value for key, value in found.items() if key[0] == "goodput_aggregator_health_events_total"
    }
    assert received == {("xid", "critical"): 1, ("other", "info"): 1, ("link_flap", "warning"): 1}
    hit = {key[1:]: value for key, value in found.items() if key[0] == "goodput_run_health_events"}
    assert hit == {("r/1", *key): 1 for key in received}
    spent = {
        key[1:]: value for key, value in found.items() if key[0] == "goodput_run_health_cost_gpu_seconds"
    }
    assert spent == {("r/1", "xid"): RESTART}
    push(served, node="n0", health=[health_event(1, 7), health_event(9, 9, severity="?")])
    found = samples(served)
    assert found["goodput_aggregator_health_dropped_total", "malformed"] == 1
    assert found["goodput_aggregator_health_events_total", "xid", "critical"] == 1


def test_answers_are_equal_after_a_restart(served, tmp_path):
    want = served.get("/api/v1/health").json()
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as again:
        assert again.get("/api/v1/health").json() == want
    assert len(list(Ledger(f"sqlite:///{tmp_path}/ledger.db").health(9))) == 3


# ---- On the page


@needs_chromium
def test_page_shows_events_and_critical_nodes(served):
    hostile = "<img src=x onerror=document.documentElement.dataset.ran=1>"
    last = health_event(
        5, served.base + 400, 1, 0, run="r/1", severity="critical", name=hostile, kind="ecc", device=hostile
    )
    push(served, node=hostile, health=[last])
    push(served, rank_report(Process(0, 1, time.time() - 50).steps(9, forward=1).finished(), run="calm"))
    url = str(served.base_url)
    with chromium() as browser:
        dom = dom_of(browser, f"{url}/#run=r%2F1")
        calm = dom_of(browser, f"{url}/#run=calm")
        runs = dom_of(browser, f"{url}/#runs")
    rows = dom.table("health-rows")
    assert [row[1] for row in rows] == [hostile, "n0", "n1", "n0"]
    assert rows[0][2] == f"critical ecc {hostile}" and rows[0][3:5] == [hostile, "0, 1"]
    assert rows[3][2:7] == ["critical xid 79 fallen", "GPU-5d", "0", "20.00", "$0.0200"]
    assert rows[2][5:7] == ["none known", ""] and rows[1][2] == "info brand new"
    assert not any("data-ran" in given for _, given in dom.tags)
    assert [given for tag, given in dom.tags if tag == "img"] == []
    assert not calm.is_shown("health") and calm.table("health-rows") == []
    assert "2 nodes with critical hardware events in the last hour:" in runs.text("health-nodes")
    assert f"{hostile} (1)" in runs.text("health-nodes") and "n0 (1)" in runs.text("health-nodes")
