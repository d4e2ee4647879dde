"""A model trained with and without goodput.auto from the same seed is the same to the last bit, whatever trains it."""

from __future__ import annotations

import ast
from pathlib import Path

import auto_process
import pytest

pytest.importorskip("torch")
SCRIPT = "auto_same_script.py"
# Where all of a step is compiled, nothing of ours runs in it; where the optimizer's step alone is, the next zero_grad
# ends the step, so the last one is not.
NOT_SEEN = ("compile_the_whole_step",)
# Of these Dynamo looks at a few frames more or less: those between the graphs, of which there are as many.
UNEVEN = (*NOT_SEEN, "compile_the_optimizer")


def cases() -> list[str]:
    """Functions that are decorated as cases, without importing torch here."""
    tree = ast.parse(Path(auto_process.HERE, SCRIPT).read_text())
    return [f.name for f in tree.body if isinstance(f, ast.FunctionDef) and f.decorator_list]


@pytest.fixture(scope="module", params=auto_process.IMPLEMENTATIONS)
def report(request, tmp_path_factory) -> dict:
    place = tmp_path_factory.mktemp("same")
    names = cases() if request.param == "compiled" else [name for name in cases() if "compile" not in name]
    # Nothing is read from a cache of another run, so that both compile what they compile.
    return auto_process.run(
        SCRIPT,
        place,
        request.param,
        CASES=" ".join(names),
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )[0]


@pytest.mark.parametrize("name", cases())
def test_the_same_weights_the_same_graphs_and_all_steps(report, name):
    if name not in report:
        pytest.skip("what Dynamo meets is the same Python with and without the compiled recorder")
    found = report[name]
    assert found["same"], found["differ"] or found["results"]
    plain, timed = ({kind: sum(each.values()) for kind, each in run.items()} for run in found["counted"])
    if name in UNEVEN:
        assert plain.pop("frames") > 0 and timed.pop("frames") > 0
    assert timed == plain
    assert not [text for text in found["warned"][1] if "goodput" in text]
    assert len(found["warned"][1]) <= len(found["warned"][0])
    wanted, steps = found["steps"]
    assert steps == (0 if name in NOT_SEEN else wanted - (name == "compile_the_optimizer"))
    assert found["depth"] == 0


def test_nothing_was_dropped(report):
    assert not any(report["drops"].values()), report["drops"]
