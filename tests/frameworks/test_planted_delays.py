"""Trouble planted in a training on the CPU is found within 5 % and named first; a clean run has no cause above 2 %."""

from __future__ import annotations

import pytest
from support.frameworks import script_process

pytestmark = pytest.mark.alone

pytest.importorskip("torch")
EXACT, FALSE_MAX = 0.05, 0.02
COMPUTE = ("productive",)


def outcome(tmp_path, name: str, implementation: str) -> tuple[float, dict]:
    found, printed = script_process.run_implementation(
        "planted_delays.py", tmp_path, implementation, PLANTED=name
    )
    assert printed == ""
    return found["planted"], found["account"]


@pytest.mark.parametrize("name", ["loader", "worker", "checkpoint", "evaluation", "compile"])
def test_what_was_planted_is_found_and_leads(tmp_path, name):
    planted, account = outcome(tmp_path, name, "compiled")
    state = {"worker": "loader"}.get(name, name)
    assert planted > 0.3
    assert account["states"][state] == pytest.approx(planted, rel=EXACT), account["states"]
    leading = [cause["state"] for cause in account["causes"] if cause["state"] != "startup"]
    assert leading[0] == state, account["states"]
    assert sum(account["states"].values()) == pytest.approx(account["gpu_seconds"], rel=1e-9)


@pytest.mark.parametrize("implementation", script_process.IMPLEMENTATIONS)
def test_a_clean_run_has_no_false_cause(tmp_path, implementation):
    _, account = outcome(tmp_path, "clean", implementation)
    states = dict(account["states"])
    trained = account["gpu_seconds"] - states.pop("startup")
    for state in (*COMPUTE, "compile"):  # The first step's excess is real: buffers and threads are made.
        states.pop(state)
    assert all(seconds <= FALSE_MAX * trained for seconds in states.values()), (states, trained)
