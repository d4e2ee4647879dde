"""Loops that raise, are interrupted, fork, evaluate and save: totals close, steps and checkpoints are counted."""

from __future__ import annotations

import pytest
from support.frameworks import script_process
from support.installed import need

need("torch", "safetensors")
FOLDER = "loop_variants"
CASES = [
    name
    for file in (
        "exceptions",
        "places",
        "fetches",
        "gaps",
        "evaluation",
        "rollouts",
        "checkpoints",
        "optimizers",
    )
    for name in script_process.cases_of(f"{FOLDER}/{file}.py")
]
TOLERANCE = 0.05  # of what a script measured itself
SLACK_SECONDS = 0.004


@pytest.fixture(scope="module", params=script_process.IMPLEMENTATIONS)
def outcome(request, tmp_path_factory) -> tuple[dict, str]:
    place = tmp_path_factory.mktemp("loops")
    return script_process.run_implementation(f"{FOLDER}/run.py", place, request.param, forked="torch")


@pytest.mark.parametrize("name", CASES)
def test_page_shows_what_the_loop_did(outcome, name):
    found = outcome[0][name]
    expected, seconds = found["expected"], found["seconds"]
    assert abs(found["steps"] - expected["steps"]) <= expected.get("steps_off", 0)
    assert found["off"] == 0 and found["drops"] == 0 and found["depth"][1] == 0
    if "evaluation_seconds" in expected:
        evaluation = expected["evaluation_seconds"]
        tolerance = TOLERANCE * evaluation + SLACK_SECONDS + found["core_wait"]
        assert abs(seconds["evaluation"] - evaluation) <= tolerance
    if "rollout_seconds" in expected:
        rollout = expected["rollout_seconds"]
        tolerance = max(TOLERANCE * rollout, expected.get("rollout_off", 0)) + SLACK_SECONDS
        assert abs(seconds["rollout"] - rollout) <= tolerance + found["core_wait"]
    for phase, least in expected.get("least", {}).items():
        # What a wait for a core makes longer than a backward pass is not taken for compute.
        assert seconds[phase] >= (1 - TOLERANCE) * least - found["core_wait"], seconds
    for phase, most in expected.get("most", {}).items():
        assert seconds[phase] <= (1 + TOLERANCE) * most + SLACK_SECONDS + found["core_wait"], seconds
    if "events" in expected:
        assert [event for event in found["events"] if event[0] != "mark"] == expected["events"]


def test_nothing_is_printed(outcome):
    assert outcome[1] == ""
