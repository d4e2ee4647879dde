"""Ten innocent days without a page, and a morning on which every planted fault is told.

The command `python -m bench.alert_replay` with fewer ranks and coarser moments; the two worlds side by side. What it
costs: about a minute on two busy cores.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.alert_replay.evaluate import Firing
from bench.alert_replay.innocent import DAYS, innocent
from bench.alert_replay.planted import planted
from bench.alert_replay.verdict import strays, told
from support.servers.servers import require

ROOT = Path(__file__).parents[2]
INNOCENT = {"gpus": 2, "large": 1, "base": 300, "fine": 60, "near": 400}
PLANTED = 60


@pytest.fixture(scope="module")
def fired() -> dict[str, list[Firing]]:
    """What fired, by world."""
    require("prometheus")
    options = [f"--{name}={value}" for name, value in {**INNOCENT, "planted": PLANTED}.items()]
    ours = [sys.executable, "-m", "bench.alert_replay", "--json", *options]
    running = {
        only: subprocess.Popen(
            [*ours, f"--only={only}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for only in ("innocent", "planted")
    }
    found = {}
    try:
        for process in running.values():
            out, said = process.communicate(timeout=600)
            assert process.returncode in (0, 1) and out, said
            found |= {world: [Firing(**one) for one in alerts] for world, alerts in json.loads(out).items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return found


def test_ten_innocent_days_page_nobody(fired):
    pages = [one for one in fired["innocent"] if one.severity == "critical"]
    assert pages == []


def test_the_innocent_days_are_as_eventful_as_they_claim():
    days = 86_400.0
    small = {name: value for name, value in INNOCENT.items() if name not in ("gpus", "large")}
    world, full = innocent(INNOCENT["gpus"], INNOCENT["large"], **small), innocent()
    for one in (world, full):
        assert one.ticks.times[0] == 0 and one.ticks.times[-1] == DAYS * days >= 10 * days
        starts = [start for job in one.jobs for start in job.starts if start.at < DAYS * days]
        assert len(starts) - len(one.jobs) >= 20  # Restarts.
        assert {start.how for start in starts} == {"killed", "failed", "finished"}
        assert any(start.lost for start in starts)
        sizes = [{len(start.places) for start in job.starts} for job in one.jobs]
        assert any(len(found) > 1 for found in sizes)  # One is elastic.
        assert len(one.aggregator_away) >= 5 and len(one.prometheus_away) >= 2
        assert sum(map(len, one.agent_away.values())) >= 20
    assert max(len(start.places) for job in full.jobs for start in job.starts) == 32


def test_every_planted_fault_is_told_where_it_is_and_in_time(fired):
    _, faults = planted(PLANTED)
    late = [
        f"{one.fault.alert} on {dict(one.fault.labels)}: {one.delay} s of {one.fault.within}"
        for one in told(faults, fired["planted"])
        if one.late
    ]
    assert late == []


def test_nothing_fires_that_no_fault_explains(fired):
    _, faults = planted(PLANTED)
    assert strays(faults, fired["planted"]) == []
