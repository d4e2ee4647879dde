"""The aggregator over HTTP: ingest, answers, and series."""

import shutil
import sqlite3
import subprocess
import time
from contextlib import contextmanager
from urllib.parse import quote

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from support.account.account_history import Process, ns
from support.aggregator.reports import body_of, node_report, rank_report, story
from support.aggregator.serve_process import push, samples, serving
from support.aggregator.shapes import assert_shape

from goodput.account import compute, document
from goodput.account.document_types import AccountDocument
from goodput.account.states import STATES
from goodput.aggregator.accounts.accounts import RunDocument
from goodput.aggregator.accounts.run_summaries import RunPage
from goodput.aggregator.api.app import create_app
from goodput.aggregator.api.exposition import KEPT_SECONDS
from goodput.aggregator.api.run_series import ROLES_SHOWN
from goodput.aggregator.ingest.store import Store
from goodput.causes import explain
from goodput.metrics import CATALOGUE
from goodput.wire import schema
from goodput.wire.collectives import CallRow, Collectives, GroupRow, ReportedOperation
from goodput.wire.connections import ConnectionRow, Connections


@pytest.fixture
def client(tmp_path):
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        yield client


def tell(client, run: str = "r1", **given) -> None:
    """The whole story of a run."""
    for ranks in story(run, **given):
        assert push(client, *ranks).rejected == []


def now() -> float:
    return time.time()


# ---- What is answered


def test_document_equals_the_account(client):
    tell(client)
    found = client.get("/api/v1/runs/r1").json()
    assert_shape(found, RunDocument)
    store = Store()
    for ranks in story():
        for report in ranks:
            store.merge(report, ns(5000))
    want = compute(store.runs["r1"], ns(5000), stale_seconds=30)
    want = document(want, explain(want))
    assert {name: found[name] for name in want} == want
    assert (found["status"], found["steps"], found["restarts"][0]["resume_step"]) == (
        "finished",
        {"kept": 32, "lost": 8},
        7,
    )
    assert list(found["states"]) == list(STATES)
    assert found["factors"]["mfu"] is not None


def test_document_has_live_ranks(client):
    start = now() - 500
    busy = Process(0, 2, start, world_size=3).steps(4, forward=1).begun(loader=0.5).silent(after=0.25)
    dead = Process(1, 2, start, world_size=3).steps(2, forward=1).killed(after=1)
    push(client, rank_report(busy), rank_report(dead))
    found = client.get("/api/v1/runs/r1").json()
    assert_shape(found, RunDocument)
    assert found["status"] == "running" and found["world_size"] == 3
    one, two = found["live"]
    age = one.pop("report_age_seconds")
    assert 0 <= age < 5, "since it was received, by this host's clock"
    assert one == {
        "rank": 0,
        "host": "n0",
        "attempt": 2,
        "alive": True,
        "ended": "",
        "phase": "loader",
        "phase_seconds": 0.25,
        "step": 3,
        "step_seconds": 1.0,
        "gpu_activity": None,
        "gpu_watts": None,
    }
    assert (two["alive"], two["ended"], two["step"]) == (False, "killed", 1)


def test_run_list_is_newest_first(client):
    tell(client, "old", start=1000)
    push(client, rank_report(Process(0, 1, now() - 5).steps(3, forward=1), run="running"))
    tell(client, "new", start=5000)
    found = client.get("/api/v1/runs").json()
    assert_shape(found, RunPage)
    assert [(row["run"], row["status"]) for row in found["runs"]] == [
        ("running", "running"),
        ("new", "finished"),
        ("old", "finished"),
    ]
    old = client.get("/api/v1/runs/old").json()
    row = found["runs"][2]
    assert (row["goodput"], row["mfu"]) == (old["factors"]["goodput"], old["factors"]["mfu"])
    assert (row["gpu_seconds"], row["restarts"]) == (old["gpu_seconds"], 1)
    assert row["leading_cause"] == old["advice_order"][0]


def test_empty_aggregator_answers(client):
    assert client.get("/api/v1/runs").json() == {"runs": [], "total": 0, "truncated": False}
    assert client.get("/healthz").text == "ok\n"
    for path in ("/api/v1/runs/nobody", "/api/v1/runs/", "/api/v2/runs", "/api/v1/nothing"):
        assert client.get(path).status_code == 404, path
    assert "'nobody'" in client.get("/api/v1/runs/nobody").json()["detail"]
    assert client.get("/api/v1/ingest").status_code == 405


@pytest.mark.parametrize(
    "run",
    [
        "team/llama 7b",
        "日本語-ラン",
        'it\'s "quoted"',
        "100%?#&=+;,",
        "a/b/c/",
        "/lead",
        "..%2f",
        "{run}",
        "\\n",
    ],
)
def test_runs_with_any_name_are_found(client, run):
    tell(client, run, start=now() - 60)
    found = client.get(f"/api/v1/runs/{quote(run, safe='')}")
    assert (found.status_code, found.json()["run"]) == (200, run)
    assert client.get("/api/v1/runs").json()["runs"][0]["run"] == run
    # The labels of a series survive the escape of the text format.
    text = client.get("/metrics").text
    (family,) = [f for f in text_string_to_metric_families(text) if f.name == "goodput_run_info"]
    assert [sample.labels["run"] for sample in family.samples] == [run]


@pytest.mark.parametrize("run", ["a/b", "a%2Fb", "..", "../x", "a b", "日本語-ラン", 'q"&run=b#?+'])
def test_series_of_one_run(client, run):
    for name in (run, "other", f"{run}2"):
        tell(client, name, start=now() - 60)
    text = client.get("/metrics", params={"run": run}).text
    families = list(text_string_to_metric_families(text))
    labels = [sample.labels for family in families for sample in family.samples]
    assert {found["run"] for found in labels if "run" in found} == {run}
    assert [found for found in labels if "run" not in found] == [{}], "its age, and nothing of the aggregator"
    both = client.get("/metrics", params={"run": [run, "other", "unknown"]}).text
    shown = {s.labels.get("run") for f in text_string_to_metric_families(both) for s in f.samples}
    assert shown == {run, "other", None}
    assert client.get("/metrics", params={"run": "unknown"}).status_code == 200
    assert client.get("/metrics", params={"run": ["x"] * 65}).status_code == 422


@pytest.mark.parametrize(
    "path", ["/", "/page.css", "/healthz", "/readyz", "/metrics", "/api/v1/runs", "/api/v1/runs/r1/account",
             "/api/v1/openapi.json", "/login", "/nothing", "/api/v1/ingest"],
)  # fmt: skip
def test_head_answers_as_get_without_the_body(client, path):
    """As probes and `curl -I` do."""
    tell(client)
    get, head = client.get(path), client.head(path)
    assert (head.status_code, head.headers.get("content-type"), head.content) == (
        get.status_code,
        get.headers.get("content-type"),
        b"",
    )
    assert client.get("/healthz").text.startswith("ok"), "the connection goes on"


def test_metrics_are_compressed_on_request(client):
    tell(client, start=now() - 60)
    for accepted, compressed in (
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
    ):
        answer = client.get("/metrics", headers={"Accept-Encoding": accepted})
        assert (answer.headers.get("content-encoding") == "gzip") == compressed
        assert answer.headers["vary"] == "Accept, Accept-Encoding"
        assert 'goodput_run_info{device="NVIDIA H100 80GB HBM3",run="r1"' in answer.text


def test_openapi_matches_the_run_document(client):
    found = client.get("/api/v1/openapi.json").json()
    assert set(found["paths"]) >= {"/api/v1/runs", "/api/v1/runs/{run}"}
    answers = found["paths"]["/api/v1/runs/{run}"]["get"]["responses"]
    assert (
        answers["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/RunDocument")
        and "404" in answers
    )
    properties = found["components"]["schemas"]["RunDocument"]["properties"]
    tell(client)
    assert set(client.get("/api/v1/runs/r1").json()) == set(properties)


# ---- Ingest


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"{}", b"\x00" * 1000, b"\x91" * 5000, msgspec.msgpack.encode({"node": "n"}), b"hello"],
    ids=["empty", "unused", "json", "zeros", "deep", "fields", "text"],
)
def test_garbage_is_refused(client, body):
    answer = client.post("/api/v1/ingest", content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/plain")
    assert answer.text.startswith("malformed report:")
    assert samples(client)["goodput_aggregator_reports_total", "malformed"] == 1
    assert client.get("/api/v1/runs").json() == {"runs": [], "total": 0, "truncated": False}


def test_wrong_version_and_too_many_ranks_are_refused(client):
    newer = client.post("/api/v1/ingest", content=schema.encode(replace(node_report(), version=3)))
    assert newer.status_code == 400 and "report version 3, this aggregator supports 1 and 2" in newer.text
    accepted = client.post("/api/v1/ingest", content=schema.encode(node_report()))
    assert newer.headers["goodput-report-versions"] == accepted.headers["goodput-report-versions"] == "1, 2"
    many = schema.encode(node_report(*[rank_report(Process())] * (schema.RANKS_MAX + 1)))
    answer = client.post("/api/v1/ingest", content=many)
    assert (answer.status_code, "4097 ranks" in answer.text) == (400, True)


def test_oversized_body_is_refused_early(client, monkeypatch):
    monkeypatch.setattr(schema, "BODY_BYTES_MAX", 10_000)
    sent = []

    def chunks():
        for _ in range(100):
            sent.append(1)
            yield b"x" * 1000

    answer = client.post("/api/v1/ingest", content=chunks())
    assert (answer.status_code, answer.text) == (413, "report too large: 10000 bytes at most\n")
    assert samples(client)["goodput_aggregator_reports_total", "malformed"] == 1
    assert client.post("/api/v1/ingest", content=b"x" * 10_000).status_code == 400, "just fits"


def test_invalid_rank_is_rejected_alone(client):
    start = now() - 5
    good, other = Process(0, 1, start).steps(3, forward=1), Process(2, 1, start).steps(3, forward=1)
    bad = rank_report(Process(1, 1, start, world_size=3).steps(3, forward=1))
    bad = replace(bad, steps=[replace(bad.steps[0], start_ns=bad.steps[0].end_ns + 1)])
    ack = push(client, rank_report(good), bad, rank_report(other))
    assert ack.accepted == 2
    (rejection,) = ack.rejected
    assert (rejection.run, rejection.rank, rejection.reason) == ("r1", 1, "malformed")
    assert "negative duration" in rejection.text
    ranks = client.get("/api/v1/runs/r1").json()["ranks"]
    assert [rank["steps"]["kept"] for rank in ranks] == [3, 0, 3]


def test_claiming_process_is_rejected_alone(client):
    start = now() - 5
    push(client, rank_report(Process(0, 1, start).steps(3, forward=1)))
    thief = rank_report(Process(0, 1, start).steps(4, forward=1), pid=77, host="n9")
    ack = push(client, rank_report(Process(1, 1, start).steps(3, forward=1)), thief)
    assert (ack.accepted, [(r.rank, r.reason) for r in ack.rejected]) == (1, [(0, "claim")])
    assert "n0" in ack.rejected[0].text and "n9 pid 77 claims it too" in ack.rejected[0].text
    ranks = client.get("/api/v1/runs/r1").json()["ranks"]
    assert [rank["steps"]["kept"] for rank in ranks] == [3, 3]


def test_unwritable_ledger_answers_503_and_recovers(tmp_path):
    app = create_app(f"sqlite:///{tmp_path}/ledger.db")
    with serving(app) as client:
        one = Process(0, 1, now() - 9).steps(3, forward=1)
        push(client, rank_report(one))
        with without_a_table(tmp_path / "ledger.db"):
            answer = client.post("/api/v1/ingest", content=body_of(rank_report(one.step(forward=1))))
            assert (answer.status_code, answer.headers["content-type"]) == (503, "text/plain")
            assert "no such table" in answer.text
            found = samples(client)
            assert found["goodput_aggregator_reports_total", "failed"] == 1
            assert found["goodput_aggregator_ledger_errors_total",] == 1
            # What is known is shown all the same.
            assert client.get("/api/v1/runs/r1").json()["steps"]["kept"] == 4
        push(client, rank_report(one.step(forward=1)))
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        assert client.get("/api/v1/runs/r1").json()["steps"]["kept"] == 5


@contextmanager
def without_a_table(path):
    """A table that is missing until the end."""
    with sqlite3.connect(path) as database:
        database.execute("alter table processes rename to hidden")
    yield
    with sqlite3.connect(path) as database:
        database.execute("alter table hidden rename to processes")


# ---- What is counted


def test_counters_follow_pushes(client):
    before = samples(client)
    assert before["goodput_aggregator_runs",] == 0
    one = Process(0, 1, now() - 20).steps(3, forward=1).saved()
    report = rank_report(one)
    push(client, report)
    push(client, report)
    push(client, rank_report(Process(0, 1, now() - 20), pid=1))
    client.post("/api/v1/ingest", content=b"junk")
    found = samples(client)
    moved = {
        key: value - before.get(key, 0) for key, value in found.items() if key[0].startswith("goodput_aggr")
    }
    assert {
        key: value for key, value in moved.items() if key[0].split("_")[2] in ("reports", "rank", "rows")
    } == {
        ("goodput_aggregator_reports_total", "accepted"): 3,
        ("goodput_aggregator_reports_total", "malformed"): 1,
        ("goodput_aggregator_reports_total", "failed"): 0,
        ("goodput_aggregator_rank_rejections_total", "malformed"): 0,
        ("goodput_aggregator_rank_rejections_total", "claim"): 1,
        ("goodput_aggregator_rank_rejections_total", "phases"): 0,
        ("goodput_aggregator_rank_rejections_total", "runs"): 0,
        ("goodput_aggregator_rank_rejections_total", "ranks"): 0,
        ("goodput_aggregator_rank_rejections_total", "scope"): 0,
        ("goodput_aggregator_rank_rejections_total", "time"): 0,
        ("goodput_aggregator_rows_total", "new"): 5,
        ("goodput_aggregator_rows_total", "repeated"): 5,
    }
    assert moved["goodput_aggregator_ingest_seconds_total",] > 0
    assert found["goodput_aggregator_runs",] == 1 and found["goodput_aggregator_memory_bytes",] > 1e6


def test_series_match_the_document(client):
    for ranks in story(start=now() - 60):
        push(client, *ranks)
    found, run = samples(client), client.get("/api/v1/runs/r1").json()
    for state in STATES:
        assert found["goodput_gpu_seconds", "r1", state] == run["states"][state]
    dollars = {state: found["goodput_cost_dollars", "r1", state] for state in STATES}
    assert sum(dollars.values()) == pytest.approx(run["gpu_seconds"] / 3600 * 2.5)
    for factor in ("availability", "step_efficiency", "goodput", "compute_efficiency", "mfu"):
        assert found[f"goodput_{factor}_ratio", "r1"] == run["factors"][factor]
    assert found["goodput_coverage_ratio", "r1"] == run["coverage"]["time"]
    assert (found["goodput_steps", "r1", "kept"], found["goodput_steps", "r1", "lost"]) == (32, 8)
    assert found["goodput_restarts", "r1"] == 1
    assert found["goodput_straggler_slowdown_ratio", "r1"] == run["straggler"]["slowdown"]
    assert found["goodput_straggler_share_ratio", "r1", "1", "n1"] == 1.0
    assert found["goodput_run_info", "r1", "NVIDIA H100 80GB HBM3", "finished"] == 1
    assert found["goodput_progress_age_seconds", "r1"] == 0, (
        "a finished run makes no progress, and needs none"
    )
    gains = {cause["state"]: cause["gain"] for cause in run["causes"]}
    assert {key[2]: value for key, value in found.items() if key[0] == "goodput_cause_gain_ratio"} == gains
    places = {key[2]: value for key, value in found.items() if key[0] == "goodput_cause_order"}
    assert sorted(places, key=lambda state: places[state]) == run["advice_order"]
    assert sorted(places.values()) == list(range(1, len(gains) + 1))


def ranks_with_roles(run: str, roles: list[str]) -> list:
    """Ranks of two devices each that make rollouts, the first for longest, beside a trainer with a third of them."""
    declared = {"world_size": len(roles) + 1, "devices": 2}
    trainer = Process(0, 1, now() - 60, **declared).steps(3, forward=1.0, communication=0.5).finished()
    others = [
        Process(rank, 1, now() - 60, role=role, **declared).between(none=1, rollout=30 - rank).finished()
        for rank, role in enumerate(roles, 1)
    ]
    return [rank_report(one, run) for one in (trainer, *others)]


def test_each_role_has_series_that_close(client):
    push(client, *ranks_with_roles("rl", ["generator", "generator"]))
    push(client, *ranks_with_roles("many", [f"role{i}" for i in range(20)]))
    tell(client)
    found, run = samples(client), client.get("/api/v1/runs/rl").json()
    for one in run["roles"]:
        for state, seconds in one["states"].items():
            assert found["goodput_role_gpu_seconds", "rl", one["role"], state] == seconds
    assert found["goodput_role_gpu_seconds", "rl", "generator", "rollout"] == 2 * (29 + 28)
    roles = [key[1:3] for key in found if key[0] == "goodput_role_gpu_seconds" and key[3] == "rollout"]
    assert len([name for name, _ in roles if name == "many"]) == ROLES_SHOWN
    assert {name for name, _ in roles} == {"rl", "many"}, "a run of one role has no such series"
    (rest,) = [one for one in run["roles"] if one["role"] == "trainer"]
    assert sum(one["gpu_seconds"] for one in run["roles"]) == pytest.approx(run["gpu_seconds"], rel=1e-12)
    assert rest["goodput"] == pytest.approx(rest["states"]["productive"] / rest["gpu_seconds"], rel=1e-12)


def staged(run: str, start: float) -> list:
    """Four ranks of two pipeline stages on two hosts, which declare power and hardware FLOPs; rank 3 is slow."""
    declared = {"flops_per_step": 2e12, "hardware_flops_per_step": 3e12, "peak_flops_per_second": 8e12}
    declared |= {"world_size": 4, "microbatches": 3, "gpu_power_watts": 500.0}
    ranks = [Process(r, 1, start, stage=r // 2, host=f"h{r // 2}", **declared) for r in range(4)]
    for one in ranks:
        wait = 0.25 if one.rank < 3 else 0
        one.steps(8, forward=1.25 - wait, communication=0.25 + wait).finished()
    return [rank_report(one, run) for one in ranks]


def test_figures_are_series_and_unknown_ones_absent(client):
    for ranks in story(start=now() - 60):
        push(client, *ranks)
    sends = (ReportedOperation("pp", "send", 4, 8, ns(1), 0, size=2),)
    for one in staged("r4", now() - 60):
        push(client, replace(one, live=replace(one.live, operations=sends)))
    found, run = samples(client), client.get("/api/v1/runs/r1").json()
    # 12 + 8 steps of 2 ranks with 32 samples each, of which 4 steps were lost.
    assert (found["goodput_run_samples", "r1", "kept"], found["goodput_run_samples", "r1", "lost"]) == (
        1024,
        256,
    )
    assert found["goodput_throughput_goodput_ratio", "r1"] == run["throughput"]["goodput"]
    saving = run["checkpoints"]
    assert found["goodput_checkpoint_save_seconds", "r1"] == saving["save_seconds"] == 0.25
    best = found["goodput_checkpoint_best_interval_seconds", "r1"]
    assert best == saving["best_interval_seconds"]
    assert best == pytest.approx((2 * 0.25 * saving["seconds_between_failures"]) ** 0.5)
    assert found["goodput_straggler_host_share_ratio", "r1", "n1"] == 1.0
    assert found["goodput_input_errors", "r1"] == 0
    for name in ("hfu_ratio", "pipeline_bubble_ratio", "energy_joules"):
        assert not any(key[:2] == (f"goodput_{name}", "r1") for key in found), name
    run = client.get("/api/v1/runs/r4").json()
    assert found["goodput_hfu_ratio", "r4"] == run["factors"]["hfu"] == pytest.approx(3 / 8 / 1.5)
    assert found["goodput_pipeline_bubble_ratio", "r4", "ideal"] == pytest.approx(1 / 4)
    # Three ranks wait 0.5 s of 1.5, one 0.25 s.
    assert found["goodput_pipeline_bubble_ratio", "r4", "measured"] == pytest.approx((3 * 0.5 + 0.25) / 6)
    joules = {key[2]: value for key, value in found.items() if key[:2] == ("goodput_energy_joules", "r4")}
    assert joules == run["energy"]["states"] and sum(joules.values()) == pytest.approx(4 * 8 * 1.5 * 500)
    assert not any(key[:2] == ("goodput_cost_dollars", "r4") for key in found)


def test_gpu_samples_reach_windows_and_survive_restart(client, tmp_path):
    start = float(int(now()) - 60)
    one = Process(0, 1, start).between(none=2).steps(8, loader=0.5, forward=1.5)
    # Of 12 s of compute 6 were looked at, and the device idled in 3 of them.
    one.hardware = {"compute_ns": ns(6), "idle_ns": ns(3), "energy_mj": 9_000_000}
    push(client, rank_report(one.finished()))
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as again:
        for served in (client, again):
            run = served.get("/api/v1/runs/r1").json()
            assert_shape(run, RunDocument)
            assert (run["states"]["productive"], run["states"]["launch"]) == (9, 3)
            assert (run["basis"]["launch"], run["basis"]["energy"]) == ("estimated", "measured")
            assert run["energy"]["total"] == 9000
            window = served.get(f"/api/v1/runs/r1/account?start={start + 2}&end={start + 10}").json()
            assert_shape(window, AccountDocument)
            assert (window["states"]["productive"], window["states"]["launch"]) == (4.5, 1.5)
            assert window["energy"]["total"] == 4000
            assert samples(served)["goodput_gpu_seconds", "r1", "launch"] == 3


def test_slow_stage_and_stretches_are_in_the_api(client):
    """Stage 1 has twice the work from the start; rank 1 is slow in 40 steps of one attempt and recovers."""
    start, declared = now() - 600, {"world_size": 8, "microbatches": 8}
    ranks = [Process(r, 1, start, stage=r // 4, group=f"s{r // 4}", **declared) for r in range(8)]
    for step in range(120):
        for one in ranks:
            own = 2.0 if one.rank > 3 else 1.5 if one.rank == 1 and step < 40 else 1.0
            one.step(forward=own, communication=2.0625 - own)
    push(client, *(rank_report(one.finished()) for one in ranks))
    run = client.get("/api/v1/runs/r1").json()
    assert_shape(run, RunDocument)
    straggler = run["straggler"]
    assert straggler["culprit_stage"] == 1
    (stretch,) = straggler["onsets"]
    assert (stretch["rank"], stretch["first_step"], stretch["from_start"]) == (1, 1, True)
    assert 38 <= stretch["last_step"] <= 40
    assert run["states"]["bubble"] > 0 and run["basis"]["bubble"] == "estimated"


def test_causes_are_in_the_order_of_advice(client):
    """20 s of startup are paid once; 0.5 s of loader in each of 5 steps of 100 recur."""
    start = now() - 60
    one = Process(0, 1, start, total_steps=100).between(none=20).steps(5, forward=1, loader=0.5)
    push(client, rank_report(one.finished()))
    run = client.get("/api/v1/runs/r1").json()
    assert_shape(run, RunDocument)
    assert [cause["state"] for cause in run["causes"]] == ["startup", "loader"]
    assert run["advice_order"] == ["loader", "startup"]
    assert (run["whole_run"]["steps"], run["whole_run"]["basis"]) == (100, "declared")
    assert run["whole_run"]["gpu_seconds"] == pytest.approx(20 + 100 * 1.5)
    assert client.get("/api/v1/runs").json()["runs"][0]["leading_cause"] == "loader"
    windows = client.get("/api/v1/runs/r1/rolling").json()["windows"]
    assert {window["leading_cause"] for window in windows} == {"loader"}
    window = client.get(f"/api/v1/runs/r1/account?start={start + 1}").json()
    assert_shape(window, AccountDocument)
    assert window["whole_run"] is None and window["advice_order"] == ["loader", "startup"]


def test_wrong_input_is_counted(client):
    declared = {"flops_per_step": 2e13, "peak_flops_per_second": 8e12}
    push(client, rank_report(Process(0, 1, now() - 60, **declared).steps(8, forward=1).finished()))
    found = samples(client)
    assert found["goodput_input_errors", "r1"] == 1 and ("goodput_mfu_ratio", "r1") not in found


def test_rank_counts_and_report_age(client):
    start = now() - 10
    push(client, rank_report(Process(0, 1, start, world_size=4).steps(3, forward=1).silent(after=7)))
    push(client, rank_report(Process(1, 1, start, world_size=4).steps(3, forward=1).killed(after=7)))
    found = samples(client)
    kinds = {key[2]: value for key, value in found.items() if key[0] == "goodput_ranks"}
    assert kinds == {"expected": 4, "observed": 2, "alive": 1}
    assert 0 <= found["goodput_rank_last_report_age_seconds", "r1"] < 60
    assert 6 < found["goodput_progress_age_seconds", "r1"] < 60
    assert ("goodput_mfu_ratio", "r1") not in found, "unknown is absent, not zero"


def test_ages_after_restart_come_from_the_ledger(client, tmp_path):
    push(client, rank_report(Process(0, 1, now() - 100).steps(60, forward=1)))
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as again:
        found = samples(again)
        assert 39 < found["goodput_rank_last_report_age_seconds", "r1"] < 200
        assert 39 < again.get("/api/v1/runs/r1").json()["live"][0]["report_age_seconds"] < 200
        assert again.get("/api/v1/runs/r1").json()["status"] == "unobserved"


def test_finished_run_leaves_series_not_api(client):
    for ranks in story("recent", start=now() - 60):
        push(client, *ranks)
    for ranks in story("past", start=now() - KEPT_SECONDS - 60):
        push(client, *ranks)
    runs = {key[1] for key in samples(client) if key[0] == "goodput_gpu_seconds"}
    assert runs == {"recent"}
    assert {row["run"] for row in client.get("/api/v1/runs").json()["runs"]} == {"recent", "past"}


def push_what_makes_every_series(client) -> None:
    """Runs with restarts, saves, a hang, stages, roles, a missing rank, spent calls, slow links, health events and a clock."""
    for ranks in story(start=now() - 60):
        push(client, *ranks)
    saves = Process(0, 1, now() - 5).step(forward=1).saved().step(forward=1).saved()
    push(client, rank_report(saves, run="r2"))
    stuck = Process(0, 1, now() - 300).steps(2, forward=1).begun(loader=1).silent(after=290)
    report = rank_report(stuck, run="r3")
    call = CallRow(1, "all_reduce", "float32", 8, -1, report.live.now_ns - ns(280), 0)
    called = Collectives((GroupRow("0", "default_pg", "gloo", 1, ((0, 1, 1),), 1, (call,)),))
    push(client, replace(report, live=replace(report.live, collectives=called)))
    sends = (ReportedOperation("pp", "send", 4, 8, ns(1), 0, size=2),)
    for one in staged("r4", now() - 60):
        push(client, replace(one, live=replace(one.live, operations=sends)))
    push(client, *ranks_with_roles("r5", ["generator"]))
    alone = Process(0, 1, now() - 90, world_size=2)  # Rank 1 never reports.
    push(client, rank_report(alone.steps(80, forward=1), run="r8"))
    spent = (ReportedOperation("dp", "all_reduce", 1, 8, ns(1), 0, 0, 8, 0, ns(1), 4, 10**9, 0, ns(1), 8),)
    one = rank_report(Process(0, 1, now() - 9).steps(2, forward=1, communication=1), run="r6")
    push(client, replace(one, live=replace(one.live, operations=spent)))
    # Enough steps to be replayed, which asking for the run does.
    two = [
        Process(rank, 1, now() - 60, world_size=2).steps(
            30, loader=0.1 + rank, forward=0.2, communication=1.2 - rank
        )
        for rank in range(2)
    ]
    for one, issue_ns, busy_ns in zip(two, (ns(0.0001), ns(0.1)), (ns(0.05), ns(0.9)), strict=True):
        report, ends = rank_report(one, run="r7"), (f"10.0.0.{one.rank}:1", f"10.0.0.{1 - one.rank}:2")
        calls = (ReportedOperation("dp", "all_reduce", 30, 240, ns(1), 0, issue_ns, 2),)
        sent = Connections(ns(1), (ConnectionRow(*ends, busy_ns, 10**8, 10**5, 0, 10**6, 0, 0, 0),))
        push(client, replace(report, live=replace(report.live, operations=calls, connections=sent)))
    (cause,) = [c for c in client.get("/api/v1/runs/r7").json()["causes"] if c["state"] == "loader"]
    assert cause["gain_basis"] == "replay" and cause["gain_low"] <= cause["gain"] <= cause["gain_high"]
    # Attempt 1 of run r1 dies 21.25 s after its start, which its story tells.
    client.get("/api/v1/runs/r1/story").raise_for_status()
    push(
        client,
        health=[
            schema.Health(1, "xid", "GPU-0", ns(now() - 45), severity="critical", hits=[("r1", 0)]),
            schema.Health(2, "link_down", "mlx5_0", ns(now() - 270), severity="critical", hits=[("r3", 0)]),
        ],
        sent_ns=ns(now()),
    )
    push(client, node="ahead", sent_ns=ns(now() + 10))


def test_all_series_are_declared(client):
    push_what_makes_every_series(client)
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    (hung,) = [one for one in families if one.name == "goodput_hang_collective_seconds"]
    assert [one.labels for one in hung.samples] == [
        {"run": "r3", "kind": "network", "operation": "all_reduce", "group": "default_pg"}
    ]
    seen = set()
    for family in families:
        for sample in family.samples:
            metric = CATALOGUE[family.name if family.type == "histogram" else sample.name]
            assert (metric.exposer, metric.kind) == ("aggregator", family.type)
            assert set(sample.labels) - {"le"} == set(metric.labels) and metric.help == family.documentation
            seen.add(metric.name)
    declared = {name for name, metric in CATALOGUE.items() if metric.exposer == "aggregator"}
    # With tokens these two are in test_auth_http.py.
    declared -= {"goodput_aggregator_tokens", "goodput_aggregator_token_expiry_timestamp_seconds"}
    # With TLS it is in test_secured_stack.py.
    declared -= {"goodput_aggregator_certificate_expiry_timestamp_seconds"}
    # With --otlp they are in test_otlp_export.py.
    declared -= {name for name in declared if "_otlp_" in name}
    # With --stream they are in test_replicated.py.
    declared -= {name for name in declared if "_stream_" in name or "_partition" in name}
    # With a bound it is in test_memory_bound.py.
    declared -= {"goodput_aggregator_memory_limit_bytes"}
    # With a token for some runs that was refused it is in test_token_budgets.py.
    declared -= {"goodput_aggregator_token_refusals_total"}
    # These need ten minutes of reports, see test_recent_stragglers.py.
    declared -= {f"goodput_straggler_{what}_slowness_ratio" for what in ("culprit", "stage")}
    assert seen == declared, "and all that is declared is exposed"


def test_promtool_accepts_the_exposition(client):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus): /metrics was not checked by it")
    for ranks in story('a "run"\\n', start=now() - 60):
        push(client, *ranks)
    text = client.get("/metrics").content
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=300)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
