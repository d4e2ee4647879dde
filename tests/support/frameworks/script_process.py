"""Runs a training script of tests/support/frameworks/scripts in a process of its own, to a clean end.

`forked` names a module with which PyTorch may have been imported in a process, of which this one is a fork.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.forks import server_with
from support.paths import PYTHONPATH, SUPPORT
from support.plain_package import python_path

SCRIPTS = SUPPORT / "frameworks" / "scripts"
# The SDK's hot path, compiled or in Python.
IMPLEMENTATIONS = ("compiled", "python")
# Ends a script that hangs, also where other processes keep every core busy; below pytest's own limit.
TIMEOUT_SECONDS = 800


def run_script(script: str, *arguments, forked: str = "", **environ: str):
    """Run a script with these arguments and additional environment variables."""
    command = [str(SCRIPTS / script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, **environ}
    if forked:
        (done,) = server_with(forked).run((command, environment), seconds=TIMEOUT_SECONDS)
    else:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_implementation(
    script: str, place: Path, implementation: str, forked: str = "", **environ
) -> tuple[dict, str]:
    """(the JSON that the script wrote, what it printed)."""
    return run_case(script, "", place, implementation, forked, **environ)


def run_case(
    script: str, name: str, place: Path, implementation: str, forked: str = "", **environ
) -> tuple[dict, str]:
    """The same of one case of a script, by its name."""
    if implementation == "compiled" and importlib.util.find_spec("goodput.sdk.recorder._fast") is None:
        pytest.skip("goodput.sdk.recorder._fast is not compiled here")
    environ["PYTHONPATH"] = python_path(plain=implementation == "python")
    environ.update(GOODPUT_DIR=str(place / "pages"), GOODPUT_BUDGET="100%")
    written = place / "found.json"
    done = run_script(script, *([name] if name else []), written, forked=forked, **environ)
    return json.loads(written.read_text()), done.stdout + done.stderr


def cases_of(script: str) -> list[str]:
    """The functions of a script that are decorated as cases, without importing PyTorch here."""
    tree = ast.parse((SCRIPTS / script).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
