"""The compiled classes are built where they can be, and have the interfaces of their Python twins."""

from __future__ import annotations

import importlib
import shutil
import sysconfig
from pathlib import Path

import pytest

from goodput.nccl.library import library
from goodput.sdk.automatic import gaps, training_state
from goodput.sdk.recorder import collectives, step_clock

# Used inside the Python classes only.
PRIVATE = {
    "Clock": {"child_ns", "count_open", "stack", "unwind"},
    "Records": {"call"},
}
has_compiler = shutil.which("cc") and Path(sysconfig.get_path("include"), "Python.h").exists()


@pytest.mark.skipif(not has_compiler, reason="needs a compiler and Python's headers")
def test_extensions_are_built():
    """The build goes on without what does not compile, and most tests skip it."""
    importlib.import_module("goodput.sdk.recorder._fast")
    importlib.import_module("goodput.wire._steps")
    assert library() is not None


def public(made) -> set[str]:
    return {name for name in dir(made) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("Clock", step_clock.Clock()),
        ("TrainingState", training_state.PythonTrainingState(step_clock.Clock())),
        ("Costs", step_clock.Costs()),
        ("Gaps", gaps.PythonGaps()),
        ("FetchState", training_state.PythonFetchState()),
        ("Phase", step_clock.Phase),
        ("Records", collectives.PythonRecords),
    ],
)
def test_compiled_class_has_what_its_twin_has(name, twin):
    compiled = pytest.importorskip("goodput.sdk.recorder._fast")
    assert public(twin) - public(getattr(compiled, name)) == PRIVATE.get(name, set())
