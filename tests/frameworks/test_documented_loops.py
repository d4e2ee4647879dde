"""The loops of docs/frameworks.md with steps by hand, run with stand-ins for their frameworks."""

import ast

import pytest
from support.frameworks.scripts.documented_loops import PAGE, code_of
from support.frameworks.training_runs import committed, resumed, steps, train

pytestmark = pytest.mark.alone

SECTIONS = [line[3:] for line in PAGE.read_text().splitlines() if line.startswith("## ")]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_a_valid_example(section):
    assert ast.parse(code_of(section)).body


@pytest.mark.parametrize("section", ["DeepSpeed", "Megatron-style loops"])
def test_documented_loop_measures_its_phases(section, tmp_path):
    run = train("documented_loops.py", tmp_path, section)
    (page,) = run.snapshots("loop") if section == "DeepSpeed" else run.snapshots(run_of(run))
    assert steps(page) == [4, 5, 6, 7] and resumed(page) == [3] and committed(page) == [7]
    assert page.steps[-1].samples == 24
    spent = run.seconds(page.identity["run"])
    for phase, planted in run.printed["spent"].items():
        assert planted <= spent[phase] <= 1.05 * planted + 0.005 + run.printed["core_wait"], phase
    if section != "DeepSpeed":
        assert (page.identity["stage"], page.identity["microbatches"]) == (1, 3)
    assert run.messages() == []


def run_of(run) -> str:
    """The example sets no run, so it is named after the script."""
    (path,) = run.directory.glob("*.page")
    return path.name.rsplit(".", 3)[0]
