"""GET /api/v1/installation: bounds, ledger, versions of agents, refusals, and who may read them."""

from __future__ import annotations

import time

import pytest
from support.aggregator.page_server import aggregator, attempt_reports
from support.aggregator.shapes import assert_shape

from goodput.aggregator.api.installation_route import Installation
from goodput.aggregator.ingest import agent_versions
from goodput.aggregator.ingest.agent_versions import AgentVersions
from goodput.wire import schema

TestClient = pytest.importorskip("fastapi.testclient").TestClient


@pytest.fixture
def client(tmp_path):
    with TestClient(aggregator(tmp_path), base_url="http://127.0.0.1:9471") as client:
        yield client


def push(client, node: str, **given):
    report = schema.NodeReport(
        node, time.time_ns(), attempt_reports(f"run {node}", 1, 10**18, range(3)), **given
    )
    return client.post("/api/v1/ingest", content=schema.encode(report))


def test_installation_counts_versions_bounds_and_refusals(client):
    for node, version in (("n0", "1.2.0"), ("n1", "1.2.0"), ("n2", "1.1.9"), ("n3", "")):
        assert push(client, node, agent=version).status_code == 200
    assert client.post("/api/v1/ingest", content=b"x").status_code == 400
    push(client, "n4", health=[schema.Health(number=1, kind="", device="", time_ns=-1)])
    found = client.get("/api/v1/installation").json()
    assert_shape(found, Installation)
    assert found["agents"] == {"1.1.9": 1, "1.2.0": 2, "unknown": 2}
    assert 0 < found["bounds"]["runs"] < 1 and found["bounds"]["connections"] == 0
    assert found["ledger"]["runs_in_memory"] == 5 and found["ledger"]["runs"] == 0
    assert {"what": "push", "reason": "malformed", "count": 1} in found["refused"]
    assert {"what": "hardware event", "reason": "malformed", "count": 1} in found["refused"]
    assert found["memory_bytes"] > 1e6 and found["expires"] == {} and found["failing_files"] == []


def test_agent_versions_are_bounded_and_forgotten(monkeypatch):
    monkeypatch.setattr(agent_versions, "NODES_MAX", 3)
    now = [0.0]
    versions = AgentVersions(lambda: now[0])
    for number in range(5):
        versions.add(f"n{number}", "1.0")
    versions.add("n4", "x" * 33)
    versions.add("n3", "1.1\x1b")
    versions.add("", "1.0")
    assert versions.count() == {"1.0": 1, "unknown": 2}
    now[0] = 599.0
    versions.add("n2", "2.0")
    now[0] = 601.0
    assert versions.count() == {"2.0": 1}
