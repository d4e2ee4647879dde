"""The build backend asks for a compiler where the machine has none, and the core's library has no name of a Python in it."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import goodput._core
from goodput.cli import command_names

ROOT = Path(__file__).parents[2]


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "deploy/build_backend")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    return importlib.import_module("goodput_build")


@pytest.mark.filterwarnings("ignore:.*ext-modules")
def test_zig_is_required_only_without_a_compiler(backend, monkeypatch, tmp_path):
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert backend.compiler() is None
    assert backend.ZIG in backend.get_requires_for_build_wheel()
    assert backend.ZIG in backend.get_requires_for_build_editable()
    monkeypatch.setenv("CC", "mycc -m64")
    assert backend.compiler() == ["mycc", "-m64"]
    assert backend.ZIG not in backend.get_requires_for_build_wheel()


@pytest.mark.filterwarnings("ignore::setuptools.SetuptoolsDeprecationWarning")
def test_wheel_has_a_man_page_for_each_command(tmp_path):
    """Built as pip does: in a copy of what a source distribution has, whose build folder is not there."""
    source = tmp_path / "source"
    for name in ("src", "exporters", "deploy", "dashboards/generated"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    code = "import sys; sys.path.insert(0, 'deploy/build_backend'); import goodput_build; goodput_build.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        cwd=source, check=True, capture_output=True, timeout=300, env=os.environ | {"CFLAGS": "-O0"},
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    pages = {name.rpartition("/")[2] for name in names if "/data/share/man/man1/" in name}
    assert pages >= {"goodput.1", *(f"goodput-{name}.1" for name in command_names())}


def test_one_library_serves_every_python():
    assert [one.name for one in Path(goodput._core.__file__).parent.glob("*.so")] == ["_library.so"]


@pytest.fixture(scope="module")
def extensions() -> list[dict]:
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]


def test_every_c_file_is_in_one_library(extensions):
    named = [ROOT / source for one in extensions for source in one["sources"]]
    assert sorted(named) == sorted((ROOT / "src").rglob("*.c"))
