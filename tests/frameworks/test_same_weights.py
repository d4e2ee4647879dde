"""A model trained with and without goodput.auto from the same seed has the same weights, bit by bit."""

from __future__ import annotations

import pytest
from support.frameworks import script_process
from support.installed import need

need("torch")
FOLDER = "same_weights"
PLAIN = [
    name for file in ("plain_loops", "loaders") for name in script_process.cases_of(f"{FOLDER}/{file}.py")
]
COMPILED = script_process.cases_of(f"{FOLDER}/compiled_models.py")
CASES = [*PLAIN, *script_process.cases_of(f"{FOLDER}/model_copies.py"), *COMPILED]
# A compiled optimizer step calls no hooks: the next batch, backward pass or zero_grad ends the step, so that without a
# loader the last one stays open, unless Dynamo breaks the graph there, as on Python 3.13.
LAST_STEP_OPEN = ("compile_the_whole_step", "compile_the_optimizer")
# Dynamo sees a few frames more or less of these, and the breaks in them: frames between the graphs, of which there are
# equally many.
FRAMES_DIFFER = (*LAST_STEP_OPEN, *(f"{name}_of_a_loader" for name in LAST_STEP_OPEN))


@pytest.fixture(scope="module", params=script_process.IMPLEMENTATIONS)
def report(request, tmp_path_factory) -> dict:
    # What Dynamo traces and copies of models run the same Python with and without the compiled recorder.
    cases = CASES if request.param == "compiled" else PLAIN
    return script_process.run_implementation(
        f"{FOLDER}/run.py",
        tmp_path_factory.mktemp("same"),
        request.param,
        # Without compiled models nothing depends on when Inductor is imported.
        forked="" if request.param == "compiled" else "torch",
        CASES=" ".join(cases),
        # No results of another run's cache, so that both trainings compile; and no compiler runs to find the CPU's
        # vector instructions, which take longer than all models here. Inductor reads these when it is imported.
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
        TORCHINDUCTOR_COMPILE_THREADS="1",
        TORCHINDUCTOR_VEC_ISA_OK="1",
    )[0]


@pytest.mark.parametrize("name", CASES)
def test_weights_graphs_and_steps_are_the_same(report, name):
    if name not in report:
        pytest.skip("these run once, with the compiled recorder")
    found = report[name]
    assert found["same"], found["differ"] or found["results"]
    plain, timed = ({kind: sum(each.values()) for kind, each in run.items()} for run in found["counted"])
    if name in FRAMES_DIFFER:
        for kind in ("frames", "graph_break"):
            assert plain.pop(kind) > 0 and timed.pop(kind) > 0
    assert timed == plain
    assert not [text for text in found["warned"][1] if "goodput" in text]
    assert len(found["warned"][1]) <= len(found["warned"][0])
    expected, steps = found["steps"]
    assert expected - (name in LAST_STEP_OPEN) <= steps <= expected
    assert found["depth"] == 0


def test_nothing_was_dropped(report):
    assert not any(report["drops"].values()), report["drops"]
