"""Which thread is the step thread: batches, evaluations, checkpoints and training in threads of their own."""

from __future__ import annotations

import pytest
from support.frameworks import script_process
from support.installed import need

need("torch")
SCRIPT = "thread_loops.py"


@pytest.mark.parametrize("implementation", script_process.IMPLEMENTATIONS)
@pytest.mark.parametrize("name", script_process.cases_of(SCRIPT))
def test_steps_are_those_of_the_training_thread(tmp_path, name, implementation):
    found, printed = script_process.run_case(SCRIPT, name, tmp_path, implementation, forked="torch")
    expected, totals = found["expected"], found["totals"]
    assert expected["steps"] - found["steps"] in range(expected.get("steps_off", 0) + 1)
    assert found["drops"] == 0 and found["off"] == 0 and printed == ""
    assert totals["loader"] >= expected.get("waited", 0) * 1e9
    assert totals["none"] >= expected.get("none", 0) * 1e9
    for phase in {"loader", "prepare"} & expected.keys():
        assert totals[phase] == expected[phase]
