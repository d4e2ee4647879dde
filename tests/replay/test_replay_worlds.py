"""Innocent days fire no page, and every planted fault is detected.

Runs `python -m bench.alert_replay` for both scenarios side by side, with fewer days and ranks and coarser ticks:
about a minute on two cores. `make replay-alerts` replays all ten days.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.alert_replay.evaluate import Firing
from bench.alert_replay.innocent import DAYS, innocent
from bench.alert_replay.planted import planted
from bench.alert_replay.verdict import detections, unexplained
from support.servers.servers import require

ROOT = Path(__file__).parents[2]
INNOCENT = {"gpus": 2, "large": 1, "days": 3.0, "base": 600, "fine": 60, "near": 300}
PLANTED = 60


@pytest.fixture(scope="module")
def fired() -> dict[str, list[Firing]]:
    """What fired, by scenario."""
    require("prometheus")
    options = [f"--{name}={value}" for name, value in {**INNOCENT, "planted": PLANTED}.items()]
    command = [sys.executable, "-m", "bench.alert_replay", "--json", *options]
    running = {
        only: subprocess.Popen(
            [*command, f"--only={only}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for only in ("innocent", "planted")
    }
    found = {}
    try:
        for process in running.values():
            out, errors = process.communicate(timeout=800)
            assert process.returncode in (0, 1) and out, errors
            found |= {name: [Firing(**one) for one in alerts] for name, alerts in json.loads(out).items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return found


def test_innocent_days_fire_no_page(fired):
    pages = [one for one in fired["innocent"] if one.severity == "critical"]
    assert pages == []


def test_innocent_days_are_eventful():
    day = 86_400.0
    small = {name: value for name, value in INNOCENT.items() if name not in ("gpus", "large")}
    few, full = innocent(INNOCENT["gpus"], INNOCENT["large"], **small), innocent()
    for one, days in ((few, INNOCENT["days"]), (full, DAYS)):
        assert one.ticks.times[0] == 0 and one.ticks.times[-1] == days * day
        attempts = [attempt for run in one.runs for attempt in run.attempts if attempt.start < days * day]
        assert len(attempts) - len(one.runs) >= 2 * days, "restarts"
        assert {attempt.outcome for attempt in attempts} == {"killed", "failed", "finished"}
        assert any(attempt.lost_nodes for attempt in attempts)
        sizes = [{len(attempt.places) for attempt in run.attempts} for run in one.runs]
        assert any(len(found) > 1 for found in sizes), "one run is elastic"
        assert len(one.aggregator_outages) >= 0.9 * days
        assert any(start < days * day for start, _ in one.prometheus_outages)
        assert sum(map(len, one.agent_outages.values())) >= 2 * days
    assert max(len(attempt.places) for run in full.runs for attempt in run.attempts) == 32


def test_every_planted_fault_is_detected_in_time(fired):
    _, faults = planted(PLANTED)
    late = [
        f"{one.fault.alert} on {dict(one.fault.labels)}: {one.delay} s of {one.fault.within}"
        for one in detections(faults, fired["planted"])
        if one.late
    ]
    assert late == []


def test_no_alert_fires_without_a_fault(fired):
    _, faults = planted(PLANTED)
    assert unexplained(faults, fired["planted"]) == []
