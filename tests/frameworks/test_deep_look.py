"""Deep looks in a real training: results, cost, and failures."""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys

import pytest
from support.frameworks.script_process import run_script
from support.node.node_tree import wait_until
from support.plain_package import python_path

from goodput.sdk.automatic.frameworks.torch import deep_look as patch
from goodput.sdk.automatic.step_detection import Automatic
from goodput.sdk.startup.session import Session

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
pytestmark = [pytest.mark.torch, pytest.mark.alone]

ENDS = {"compiled": "traced", "plain": "analysis"}


def test_upstream_profiler_and_removal(tmp_path):
    upstream = torch.autograd.profiler
    names = [(upstream.profile, "_prepare_trace"), (upstream.profile, "__exit__")]
    names.append((upstream, "_run_on_profiler_start"))
    before = [vars(owner)[name] for owner, name in names]
    assert "_prepare_trace()" in inspect.getsource(upstream.profile.__enter__)
    assert "self.profiler._prepare_trace()" in inspect.getsource(torch.profiler.profile.prepare_trace)
    assert "self.profiler.__exit__(" in inspect.getsource(torch.profiler.profile.stop_trace)
    assert "self.use_device" in inspect.getsource(upstream.profile.__exit__)
    for other in (upstream.emit_nvtx, upstream.emit_itt):
        assert "_run_on_profiler_start()" in inspect.getsource(other.__enter__)
    session = Session({"GOODPUT_DIR": str(tmp_path), "GOODPUT_DEEP_LOOK": "10"})
    auto = Automatic(session, functools.partial(session.phases.define, state=None))
    patch.apply(torch, auto)
    assert auto.deep_look.setting_ns == 600 * 10**9
    assert all(vars(owner)[name] is not old for (owner, name), old in zip(names, before, strict=True))
    auto.patches.restore()
    assert [vars(owner)[name] for owner, name in names] == before


@pytest.fixture(scope="module", params=ENDS)
def outcome(request, tmp_path_factory):
    """The results of the script, which ends during a deep look; with the compiled recorder and the plain one."""
    directory = tmp_path_factory.mktemp(request.param)
    (directory / "tmp").mkdir()
    environ = {
        "GOODPUT_DIR": str(directory / "pages"),
        "GOODPUT_DEEP_LOOK": "0.02s",
        "GOODPUT_BUDGET": "1",
        "PYTHONPATH": python_path(plain=request.param == "plain"),
        "TMPDIR": str(directory / "tmp"),
        "OMP_NUM_THREADS": "1",
    }
    out = directory / "out.json"
    run_script("deep_look_cases.py", out, ENDS[request.param], forked="torch", **environ)
    return {**json.loads(out.read_text()), "how": ENDS[request.param], "directory": directory}


def test_deep_look_finds_the_loader_and_closes(outcome):
    found = outcome["slow_loader"]
    seen = found["document"]["seen"]
    assert seen["cause"]["state"] == "loader"
    assert seen["states_ns"]["loader"] >= 4 * 0.004e9
    assert sum(seen["states_ns"].values()) == seen["wall_ns"]
    # The mark in the trace is the step in the page, but for the way into the profiler, on which it may have no core.
    assert abs(seen["wall_ns"] - found["step_ns"]) < 0.05 * found["step_ns"] + 1e6 + found["core_wait_ns"]
    assert any(row["name"].startswith("aten::") for row in seen["top"])


def test_cost_is_in_the_page_outside_of_steps(outcome):
    found = outcome["slow_loader"]
    cost_ns = found["document"]["cost_ns"]
    assert found["page_cost_ns"] >= cost_ns > 0
    assert 0.5 * cost_ns < found["phase_ns"] + found["document"]["seen"]["slowdown_ns"] + 2e6
    assert found["phase_ns"] == found["outside_ns"] > 0
    assert found["closes"]
    assert len(set(found["steps"])) == 1, "a step was lost or counted twice"


def test_report_shows_it_and_no_trace_is_left(outcome):
    found = outcome["slow_loader"]
    assert "largest cause: loader" in found["report"]
    assert "deep look of rank 0 at step" in found["report"]
    assert found["file"]["seen"] == found["document"]["seen"]
    assert found["left"] == []


def test_results_are_the_same(outcome):
    assert outcome["same_weights"]["same"]
    off, on = outcome["same_weights"]["looks"]
    assert off == 0
    assert on > 0


def test_profiler_of_the_user_has_precedence(outcome):
    found = outcome["profiler_of_the_user"]
    assert found["skipped"] == 1
    assert found["events"] > 100
    assert found["gave_way"]
    assert found["left"] == 1
    assert found["events_after"] > 0
    assert found["warm"]
    assert found["events_warm"] > 10


def test_child_process_is_not_profiled(outcome):
    assert outcome["fork"]["child"] == [0]


def test_trace_stops_when_the_step_is_left(outcome):
    assert outcome["evaluation"]["stopped"] == [True]


def test_failures_are_counted_and_training_continues(outcome):
    found = outcome["trouble"]
    for what in ("start_trace", "stop", "export_chrome_trace"):
        why, *on = found[what]
        assert f"no {what}" in why
        assert on == [False, False]
    assert "/nonexistent" in found["directory"][0]
    assert "status -9" in found["killed"][0]
    assert found["errors"][0] >= 5
    why, off, alive = found["late"]
    assert "longer than" in why
    assert off
    assert not alive


def test_process_can_end_during_a_deep_look(outcome):
    if outcome["how"] == "traced":
        assert outcome["end"] is True, "no profiler ran when the script ended"
    else:
        # It ends at the lowest priority, so some time after it was killed.
        wait_until(lambda: not os.path.exists(f"/proc/{outcome['end']}"))
    assert not list((outcome["directory"] / "tmp").glob("goodput*"))


def test_report_command_shows_the_deep_look(outcome):
    done = subprocess.run(
        [sys.executable, "-m", "goodput", "report", "--directory", str(outcome["directory"] / "pages")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "deep look of rank 0 at step" in done.stdout
    assert "deep looks cost" in done.stdout
