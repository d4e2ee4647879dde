"""The compiled classes are built where they can be, and have the interfaces of those in Python."""

from __future__ import annotations

import importlib
import shutil
import sysconfig
from pathlib import Path

import pytest

from goodput.nccl.library import library
from goodput.sdk.recorder import plain, plain_training

# Used inside the Python classes only.
PRIVATE = {"Clock": {"child_ns", "count_open", "stack", "unwind"}}
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
        ("Clock", plain.Clock()),
        ("TrainingState", plain_training.TrainingState(plain.Clock())),
        ("Costs", plain.Costs()),
        ("Gaps", plain.Gaps()),
        ("FetchState", plain_training.FetchState()),
        ("Phase", plain.Phase),
        ("Slot", plain_training.Slot()),
    ],
)
def test_compiled_class_has_what_its_twin_has(name, twin):
    compiled = pytest.importorskip("goodput.sdk.recorder._fast")
    assert public(twin) - public(getattr(compiled, name)) == PRIVATE.get(name, set())
