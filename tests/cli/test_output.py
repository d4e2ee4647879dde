"""Where standard output cannot be written, a command says so in a line."""

import subprocess
import sys

import pytest
from support.paths import ROOT

EXAMPLE = str(ROOT / "docs" / "example-run.jsonl")


@pytest.mark.parametrize("words", [["replay", EXAMPLE], ["whatif", EXAMPLE], ["replay", EXAMPLE, "--story"]])
def test_full_disk_is_said_in_one_line(words):
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "goodput", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "goodput: cannot write: No space left on device"
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
