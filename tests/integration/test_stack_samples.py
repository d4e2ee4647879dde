"""A slow batch source in a real training loop, beside a real agent and aggregator: who is named, and where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.aggregator.serve_process import serving
from support.installed import need
from support.paths import PYTHONPATH
from support.programs.running import PROGRAMS
from support.servers.servers import wait_until

from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.api.app import create_app
from goodput.stack_samples.py_spy import find_py_spy, may_read
from goodput_exporters import stack_sampling
from goodput_exporters.agent import Agent

need("torch")
SCRIPT = "import runpy, sys, goodput.auto; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
RUN = "nanochat"


@pytest.fixture
def services(tmp_path, monkeypatch):
    """(directory, client of the aggregator, agent). The agent waits for no other sampler."""
    monkeypatch.setattr(stack_sampling, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(Accounts, "_is_fresh", lambda *_: False)
    (tmp_path / "pages").mkdir()
    timing = {"interval_seconds": 0.2, "push_interval_seconds": 0.2, "grace_seconds": 3600.0}
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        url = str(client.base_url)
        with Agent(str(tmp_path / "pages"), aggregator=url, sample_stacks=True, **timing) as agent:
            yield tmp_path, client, agent


def train(place: Path, **environ: str) -> subprocess.Popen:
    """The program, with goodput.auto imported first and no sampler of its own."""
    own = {
        "GOODPUT_DIR": str(place / "pages"),
        "GOODPUT_RUN": RUN,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": PYTHONPATH,
    }
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(PROGRAMS / "loops/nanochat.py"), str(place / "found.json")],
        env={**os.environ, **own, **environ},
        stdin=subprocess.DEVNULL,
    )


def test_slow_batch_source_is_named(services):
    """What the time is for is not known; the advice names the function and line."""
    place, client, agent = services
    if find_py_spy() is None:
        pytest.skip("py-spy is not installed (the extra `stacks`)")
    with train(place, DOCUMENT_SECONDS="0.04") as child:
        try:
            if not may_read(child.pid):
                pytest.skip("needs the right to read other processes")
            wait_until(lambda: agent.stack_sampling.outcomes()["taken"], 60, "a burst")
            assert child.wait(120) == 0
        finally:
            child.kill()
    found = wait_until(lambda: over(client), 60, "the end of the run")
    sampled, causes = found["stack_samples"], {cause["state"]: cause for cause in found["causes"]}
    lines = [one for one in sampled["places"] if one["place"].startswith("nanochat.py:documents, ")]
    percent = 100 * sum(one["samples"] for one in lines) / sampled["samples"]
    assert percent > 80, sampled
    assert [(one["rank"], one["samples"]) for one in sampled["ranks"]] == [(0, sampled["samples"])]
    assert f": {percent:.0f} % in nanochat.py:documents, line " in causes["unattributed"]["advice"]
    assert found["states"]["loader"] == 0


def over(client) -> dict | None:
    """The run's document once it has ended."""
    answer = client.get(f"/api/v1/runs/{RUN}")
    found = answer.json() if answer.status_code == 200 else {"status": ""}
    return found if found["status"] == "finished" and found["stack_samples"] else None
