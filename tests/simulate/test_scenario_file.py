"""Scenarios as files: what is read, and errors that say what is wrong and where."""

from __future__ import annotations

import json
import sys

import msgspec
import pytest

from goodput.simulate.random_scenario import random_scenario
from goodput.simulate.scenario import HANG_KINDS, SLOW_KINDS
from goodput.simulate.scenario_file import BYTES_MAX, ScenarioError, check, load

ATTEMPT = {"start": 5, "end": 500, "outcome": "finished"}
RUN = {"run": "r", "ranks": 8, "attempts": [ATTEMPT]}
SLOW = {"kind": "loader", "start": 1, "end": 2, "rank": 0}
XID = {"node": "r-n000", "time": 60, "kind": "xid", "gpu": 0}
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
        ({"runs": [{**RUN, "faults": [{**SLOW, "amount": -1}]}]}, r"runs\[0\]\.faults\[0\]\.amount: 0 to 1000, not -1"),
        ({"runs": [{**RUN, "faults": [{**SLOW, "amount": 1e5}]}]}, "amount: 0 to 1000, not 100000"),
        ({"runs": [{**RUN, "workload": {"step": 1e-9}}]}, "workload.step: 0.01 to 3600, not 1e-09"),
        ({"runs": [{**RUN, "workload": {"noise": 1}}]}, "workload.noise: 0 to 0.2, not 1"),
        ({"runs": [{**RUN, "attempts": [{**ATTEMPT, "ranks": 10**9}]}]}, "ranks: 0 to 100000, not 1e"),
        ({"runs": [{**RUN, "attempts": [{**ATTEMPT, "restore": -5}]}]}, "restore: 0 to 1e.09, not -5"),
        ({"runs": [{**RUN, "seed": -1}]}, "seed: 0 to .*, not -1"),
        ({"clocks": [{"node": "r-n000", "ahead": -2e9}]}, r"clocks\[0\]\.ahead: -1e.09 to 1e.09"),
        ({"outages": [{"node": "r-n000", "start": 5, "end": 5}]}, r"outages\[0\]: from 5 to 5"),
        ({"health": [{**XID, "kind": "fire"}]}, r"health\[0\]: kind 'fire', one of xid, ecc"),
        ({"health": [{**XID, "gpu": 8}]}, r"health\[0\]: gpu 8, a node has 8"),
        ({"health": [{**XID, "time": 700}]}, r"health\[0\]: at 700, after the scenario"),
        ({"runs": [{**RUN, "run": f"r{at}"} for at in range(1001)]}, r"length <= 1000 - at `\$\.runs`"),
        ({"runs": [{**RUN, "run": f"r{at}", "ranks": 10**5} for at in range(3)]}, "runs: 300000 ranks together, 200000"),
        ({"runs": [{**RUN, "attempts": [ATTEMPT] * 10_001}]}, r"length <= 10000 - at `\$\.runs\[0\]\.attempts`"),
        ({"outages": [{"node": "r-n000", "start": 5, "end": 6}] * 10_001}, r"length <= 10000 - at `\$\.outages`"),
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


def test_file_of_any_size_is_read_up_to_a_bound(tmp_path):
    """A device has no end."""
    (tmp_path / "large.json").write_bytes(b" " * (BYTES_MAX + 1))
    (tmp_path / "zeros.json").symlink_to("/dev/zero")
    for name in ("large.json", "zeros.json"):
        with pytest.raises(ScenarioError, match=rf"{name}: more than {BYTES_MAX} bytes"):
            load(tmp_path / name)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no TOML reader")
@pytest.mark.parametrize(
    "text, problem",
    [
        ("a = " + "[" * 100_000, "too deeply nested"),
        (TOML.replace("step = 1.5", "step = nan"), "workload.step: 0.01 to 3600, not nan"),
        (TOML.replace("amount = 1.4", "amount = inf"), "amount: 0 to 1000, not inf"),
        (TOML.replace("start = 200", "start = -inf"), "start: 0 to 1e.09, not -inf"),
        ("\xff", "codec can't decode|Invalid"),
    ],
)
def test_numbers_of_toml_that_json_lacks(tmp_path, text, problem):
    file = tmp_path / "s.toml"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ScenarioError, match=problem) as error:
        load(file)
    assert str(file) in str(error.value)


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
