"""The story of a run over HTTP: from the ledger's rows, with hardware events, the same as of its exported log."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.aggregator.reports import body_of
from support.aggregator.serve_process import serving
from support.aggregator.shapes import assert_shape
from support.servers.servers import wait_until

from goodput.aggregator.accounts import stories
from goodput.aggregator.api import exposition
from goodput.aggregator.api.app import create_app
from goodput.simulate.reports import acknowledge
from goodput.simulate.scenario import AttemptPlan, RunFault, RunPlan, Scenario, Workload
from goodput.simulate.world import World
from goodput.story.document_types import Story
from goodput.wire import schema

MINUTE = 60.0
NAME = "goodput_run_event_timestamp_seconds"
PLACES = [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]


def simulated() -> World:
    """Four ranks for an hour: rank 2 computes slowly from minute 20 to 40, all are killed at minute 50 and start anew.

    Steps after the checkpoint of minute 40 are lost.
    """
    attempts = [
        AttemptPlan(0.0, 50 * MINUTE, PLACES, "killed"),
        AttemptPlan(51 * MINUTE, 65 * MINUTE, PLACES, "finished"),
    ]
    slow = RunFault("compute", 20 * MINUTE, 40 * MINUTE, 1.5, rank=2)
    plan = RunPlan(
        "team/one", attempts, Workload(step=4, checkpoint_every=600, checkpoint=5), 1, [slow], thinned=False
    )
    times = [60.0 * minute for minute in range(67)]
    return World(Scenario({"n0": 2, "n1": 2}, [plan]), times, ())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    ledger = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db"
    world = simulated()
    with serving(create_app(ledger)) as client:
        for tick, now in enumerate(world.times):
            world.advance(tick)
            found = [one for run in world.current(now) for one in world.reports(run, now)]
            for attempt, rank, _ in found:
                acknowledge(attempt, rank)
            reports = [report for _, _, report in found]
            health = []
            if tick == 25:
                at_ns = reports[0].live.now_ns
                hits = [("team/one", 2)]
                health = [schema.Health(1, "throttle", "GPU-7", at_ns, 0, "", "warning", "hot", hits)]
            for node in ("n0", "n1"):
                mine = [one for one in reports if one.identity.host == node]
                body = body_of(*mine, node=node, health=health if node == "n1" else [])
                assert client.post("/api/v1/ingest", content=body).status_code == 200
        yield client, ledger


def test_story_over_http(served):
    client, _ = served
    story = client.get("/api/v1/runs/team%2Fone/story").json()
    assert_shape(story, Story)
    slow, restart = story["events"]
    assert (slow["kind"], slow["ranks"], slow["hosts"]) == ("slow rank", [2], ["n1"])
    bases = [claim["basis"] for claim in slow["claims"]]
    assert bases == ["measured"] * 3 + ["coincident"] and "throttle" in slow["claims"][-1]["text"]
    assert slow["end"] - slow["time"] == pytest.approx(20 * MINUTE, rel=0.05)
    assert restart["kind"] == "restart" and restart["gpu_seconds"] > 4 * 60
    # 1200 s in steps of 5.7 s instead of 4 s: three ranks wait 1.7 s in each.
    assert slow["gpu_seconds"] == pytest.approx(3 * 1200 * 1.7 / 5.7, rel=0.1)
    assert slow["cost"] == pytest.approx(slow["gpu_seconds"] / 3600 * 2.5)


def test_story_of_the_exported_log_is_the_same(served, tmp_path):
    """But for hardware events, which a log does not have."""
    client, ledger = served
    log = tmp_path / "run.jsonl"
    goodput = [sys.executable, "-m", "goodput"]
    subprocess.run(
        [*goodput, "export", "team/one", "--ledger", ledger, "--output", str(log)], check=True, timeout=60
    )
    done = subprocess.run(
        [*goodput, "replay", str(log), "--story", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    story, exported = client.get("/api/v1/runs/team%2Fone/story").json(), json.loads(done.stdout)
    for one, other in zip(story["events"], exported["events"], strict=True):
        assert [one[name] for name in ("kind", "ranks", "step")] == [
            other[name] for name in ("kind", "ranks", "step")
        ]
        assert one["gpu_seconds"] == pytest.approx(other["gpu_seconds"], rel=1e-6)
        texts = [claim["text"] for claim in one["claims"] if claim["basis"] != "coincident"]
        assert texts == [claim["text"] for claim in other["claims"]]


def test_story_of_some_ranks_says_so(served, monkeypatch):
    client, _ = served
    whole = client.get("/api/v1/runs/team%2Fone/story").json()["events"]
    monkeypatch.setattr(stories, "ROWS_MAX", 100)
    monkeypatch.setattr(stories, "WORST_MAX", 1)
    monkeypatch.setattr(stories, "RANKS_LEAST", 2)
    monkeypatch.setattr(stories.ResultCache, "get", lambda _self, _key, compute, _final: _first(compute()))
    found = client.get("/api/v1/runs/team%2Fone/story").json()
    assert found["pace"] == "from the recorded steps of 2 ranks that stand for all"
    assert found["events"][0]["ranks"] == [2]
    # One rank that waits stands for more than it is: two of four ranks are read, so each counts twice.
    assert found["events"][0]["gpu_seconds"] == pytest.approx(whole[0]["gpu_seconds"] * 2 / 3, rel=0.05)


async def _first(computing):
    return (await computing)[0]


def test_events_are_series_with_their_costs_and_claims(served, monkeypatch):
    """Built without a request over HTTP, for the marks of a board."""
    client, _ = served
    monkeypatch.setattr(exposition, "KEPT_SECONDS", 1e9)  # The run was over long ago.
    story = client.get("/api/v1/runs/team%2Fone/story").json()

    def marks() -> dict[str, dict]:
        families = text_string_to_metric_families(client.get("/metrics").text)
        found = [one for family in families if family.name == NAME for one in family.samples]
        return {one.labels["kind"]: {**one.labels, "time": one.value} for one in found}

    wait_until(lambda: marks().keys() == {"slow rank", "restart"}, 30, "the events")
    slow, restart = (marks()[kind] for kind in ("slow rank", "restart"))
    assert [slow["time"], restart["time"]] == pytest.approx([event["time"] for event in story["events"]])
    assert slow["title"].startswith(story["events"][0]["title"] + ", for ")
    assert re.fullmatch(r"0\.\d+ GPU-hours, \$0\.\d+ \((measured|estimated)\)", slow["cost"])
    assert slow["claims"].startswith("measured: ") and "; coincident: throttle" in slow["claims"]


def test_unknown_and_empty_runs(served):
    client, _ = served
    assert client.get("/api/v1/runs/nobody/story").status_code == 404
    assert msgspec.json.decode(client.get("/api/v1/openapi.json").content)["paths"][
        "/api/v1/runs/{run}/story"
    ]
