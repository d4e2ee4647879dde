"""Run a script of these tests with the SDK's hot path compiled or in Python, and read what it wrote.

In: a script's name, a folder, environment variables. Out: the JSON that it wrote, and what it printed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from support.paths import SUPPORT

HERE = SUPPORT / "frameworks" / "scripts"
IMPLEMENTATIONS = ("compiled", "python")


def run(script: str, place, implementation: str = "compiled", *flags: str, **given) -> tuple[dict, str]:
    """(the JSON that it wrote, what it printed); it must end well. `flags` are the interpreter's."""
    if implementation == "compiled" and importlib.util.find_spec("goodput.sdk.recorder._fast") is None:
        pytest.skip("goodput.sdk.recorder._fast is not compiled here")
    environ = dict(os.environ, GOODPUT_DIR=str(place / "pages"), GOODPUT_BUDGET="100%", **given)
    environ.pop("GOODPUT_PURE", None)
    if implementation == "python":
        environ["GOODPUT_PURE"] = "1"
    written = place / f"{script}.json"
    done = subprocess.run(
        [sys.executable, *flags, str(HERE / script), str(written)],
        env=environ, capture_output=True, text=True, timeout=170, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(written.read_text()), done.stdout + done.stderr
