"""Loops that raise, are interrupted, fork, evaluate and save: the time closes, and steps and checkpoints are counted."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.frameworks import auto_process

pytest.importorskip("torch")
SCRIPT = "auto_loop_script.py"
EXACT = 0.05  # of what a script measured itself, and:
SLACK_SECONDS = 0.004


def cases() -> list[str]:
    tree = ast.parse(Path(auto_process.HERE, SCRIPT).read_text())
    return [f.name for f in tree.body if isinstance(f, ast.FunctionDef) and f.decorator_list]


@pytest.fixture(scope="module", params=auto_process.IMPLEMENTATIONS)
def outcome(request, tmp_path_factory) -> tuple[dict, str]:
    return auto_process.run(SCRIPT, tmp_path_factory.mktemp("loop"), request.param, "-W", "error")


@pytest.mark.parametrize("name", cases())
def test_what_the_loop_did_is_what_the_page_says(outcome, name):
    found = outcome[0][name]
    said, seconds = found["said"], found["seconds"]
    assert abs(found["steps"] - said["steps"]) <= said.get("steps_off", 0)
    assert found["off"] == 0 and found["drops"] == 0 and found["depth"][1] == 0
    if "evaluation_seconds" in said:
        wanted = said["evaluation_seconds"]
        assert abs(seconds["evaluation"] - wanted) <= EXACT * wanted + SLACK_SECONDS
    for phase, least in said.get("least", {}).items():
        assert seconds[phase] >= (1 - EXACT) * least, seconds
    if "events" in said:
        assert [event for event in found["events"] if event[0] != "mark"] == said["events"]


def test_nothing_is_printed_and_nobody_is_warned(outcome):
    assert outcome[1] == ""
