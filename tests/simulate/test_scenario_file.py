"""Scenarios as files: what is read, and errors that say what is wrong and where."""

from __future__ import annotations

import json
import sys

import msgspec
import pytest

from goodput.simulate.random_scenario import random_scenario
from goodput.simulate.scenario import HANG_KINDS, SLOW_KINDS
from goodput.simulate.scenario_file import ScenarioError, check, load

ATTEMPT = {"start": 5, "end": 500, "outcome": "finished"}
RUN = {"run": "r", "ranks": 8, "attempts": [ATTEMPT]}
TOML = """
seconds = 600
[delivery]
lost = 0.1
[[runs]]
run = "llama"
ranks = 16
stages = 4
attempts = [{start = 5, end = 580, outcome = "finished"}]
workload = {step = 1.5, checkpoint = 4}
faults = [{kind = "backward", rank = 3, start = 200, end = 500, amount = 1.4}]
"""


def test_json_and_toml_are_read(tmp_path):
    scenario = random_scenario(3, ranks=16, seconds=600)
    file = tmp_path / "s.json"
    file.write_text(json.dumps(msgspec.to_builtins(scenario)))
    assert load(file) == scenario
    if sys.version_info < (3, 11):
        pytest.importorskip("tomli")
    (tmp_path / "s.toml").write_text(TOML)
    found = load(tmp_path / "s.toml")
    run = found.runs[0]
    assert (run.stages, run.workload.step, run.faults[0].amount) == (4, 1.5, 1.4)
    assert len(run.plan().attempts[0].places) == 16 and found.delivery.lost == 0.1


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"seconds": "long"}, r"Expected `float`.*\$\.seconds"),
        ({"runs": []}, "runs: there is none"),
        ({"rnus": []}, "unknown field `rnus`"),
        ({"runs": [RUN, RUN]}, "another run has this name"),
        ({"runs": [{**RUN, "attempts": [{**ATTEMPT, "end": 900}]}]}, "attempts\\[0\\]: ends at 900"),
        ({"runs": [{**RUN, "attempts": [{**ATTEMPT, "stop": 3}]}]}, r"`stop`.*\$\.runs\[0\]\.attempts\[0\]"),
        ({"runs": [{**RUN, "attempts": [ATTEMPT, {"start": 550, "end": 590}]}]}, "finished is not started"),
        ({"runs": [{**RUN, "stages": 3}]}, "8 ranks in 3 stages"),
        ({"runs": [{**RUN, "faults": [{"kind": "slow", "start": 1, "end": 2}]}]}, "faults.0.: kind 'slow', one"),
        ({"runs": [{**RUN, "faults": [{"kind": "loader", "start": 1, "end": 2, "rank": 8}]}]}, "rank 8, there"),
        ({"runs": [{**RUN, "faults": [{"kind": "hang", "start": 1, "end": 2}]}]}, "hang needs a rank"),
        ({"clocks": [{"node": "n9", "ahead": 1}]}, r"clocks\[0\]: no node 'n9'; there are r-n000"),
        ({"delivery": {"late": 2}}, "delivery.late: a share from 0 to 0.5, not 2"),
    ],
)  # fmt: skip
def test_errors_say_what_and_where(tmp_path, change, problem):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({"seconds": 600, "runs": [RUN], **change}))
    with pytest.raises(ScenarioError, match=problem) as error:
        load(file)
    assert str(file) in str(error.value)


def test_missing_file_and_broken_text(tmp_path):
    with pytest.raises(ScenarioError, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(ScenarioError, match=r"s\.json: "):
        load(tmp_path / "s.json")


def test_random_scenarios_are_valid_and_alike():
    kinds = set()
    for seed in range(30):
        scenario = random_scenario(seed, ranks=64)
        check(scenario)
        assert scenario == random_scenario(seed, ranks=64)
        kinds |= {fault.kind for run in scenario.runs for fault in run.faults}
        innocent = random_scenario(seed, ranks=64, innocent=True)
        check(innocent)
        blamed = {fault.kind for run in innocent.runs for fault in run.faults if fault.rank is not None}
        assert not blamed and not any(
            fault.kind in HANG_KINDS for run in innocent.runs for fault in run.faults
        )
    assert kinds >= {*HANG_KINDS, *SLOW_KINDS, "communication"} - {"compute"}
