"""`goodput run` of a program in which no training step is found says so in one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.installed import need

GOODPUT = [sys.executable, "-c", "import sys; from goodput.cli import main; sys.exit(main())", "run"]
CHILD = "import goodput\nfor _ in goodput.steps(range(3)): pass\n"


def said(place, text: str, *options: str, status: int = 0, **environ) -> list[str]:
    """goodput's own lines on standard error."""
    (place / "loop.py").write_text(text)
    given = dict(os.environ, GOODPUT_DIR=str(place / "pages"), PYTHONPATH=str(place), **environ)
    done = subprocess.run(
        [*GOODPUT, *options, "loop.py"], cwd=place, env=given, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("goodput: ")]


def test_a_loop_without_pytorch(tmp_path):
    (line,) = said(tmp_path, "total = sum(range(1000))")
    assert "nothing was measured: PyTorch was not imported" in line and "goodput.steps(" in line


def test_jax_is_named(tmp_path):
    (tmp_path / "jax.py").write_text("")
    (line,) = said(tmp_path, "import jax")
    assert "nothing was measured: JAX was imported" in line


def test_child_that_hides_from_goodput(tmp_path):
    (line,) = said(
        tmp_path, "import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', 'print(1)'])"
    )
    assert "no process that it started was measured" in line


@pytest.mark.parametrize(
    ("text", "options", "status", "environ"),
    [
        (CHILD, (), 0, {}),
        (f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])", (), 0, {}),
        ("pass", ("--quiet",), 0, {}),
        ("pass", (), 0, {"GOODPUT_DISABLE": "1"}),
        ("1 / 0", (), 1, {}),
    ],
    ids=["steps by hand", "a child's steps", "quiet", "disabled", "exception"],
)
def test_nothing_is_said(tmp_path, text, options, status, environ):
    assert said(tmp_path, text, *options, status=status, **environ) == []


def test_inference_has_no_training_step(tmp_path):
    need("torch")
    (line,) = said(
        tmp_path,
        "import torch\nmodel = torch.nn.Linear(4, 4).eval()\nwith torch.no_grad():\n"
        "    for batch in torch.utils.data.DataLoader(torch.ones(8, 4)): model(batch)\n",
        "--name", "inference",
    )  # fmt: skip
    assert "no training step was found in run inference: steps end where an optimizer" in line
