"""A model trained with and without goodput.auto from the same seed is the same to the last bit, whatever trains it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.frameworks import auto_process

pytest.importorskip("torch")
SCRIPT = "auto_same_script.py"
# Where the optimizer's step is compiled no hook of its is called: the next batch, backward pass or zero_grad ends the
# step, so that without a loader the last one is open.
LAST_OPEN = ("compile_the_whole_step", "compile_the_optimizer")
# Of these Dynamo looks at a few frames more or less: those between the graphs, of which there are as many.
UNEVEN = (*LAST_OPEN, *(f"{name}_of_a_loader" for name in LAST_OPEN))


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
    assert steps == wanted - (name in LAST_OPEN)
    assert found["depth"] == 0


def test_nothing_was_dropped(report):
    assert not any(report["drops"].values()), report["drops"]
