"""Whatever is passed to the SDK, nothing comes out of it into the user's code, and the account stays exact."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.sdk import junk, sdk_process
from support.sdk.checks import check


@pytest.mark.parametrize("seed", range(6))
def test_junk_in_random_order(tmp_path, directory, pure, seed):
    script = os.path.abspath(junk.__file__)
    done = subprocess.run(
        [sys.executable, "-S", script, str(seed), "1500"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env=sdk_process.environment(directory, pure, {}), errors="replace",
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "[]\n", done.stdout + done.stderr
    assert all(line.startswith("goodput: ") for line in done.stderr.splitlines()), done.stderr
    snapshots = sdk_process.Outcome(directory, 0, [], "").snapshots()
    assert snapshots and sum(snapshot.steps_done for snapshot in snapshots) > 10
    for snapshot in snapshots:
        check(snapshot)
        assert snapshot.ended


HOSTILE = """
    from support.sdk import junk as sdk_junk
    junk = sdk_junk.Hostile()
    text = sdk_junk.HostileText("mine")
"""


@pytest.mark.parametrize(
    "call",
    [
        "goodput.phase(junk)", "goodput.phase(text)", "goodput.phase('a', junk)", "goodput.phase('b', text)",
        "goodput.step(junk)", "goodput.step(0, junk)", "goodput.steps([1], junk)", "goodput.checkpoint(junk)",
        "goodput.checkpoint(1, junk)", "goodput.resumed(junk)", "goodput.mark(junk)", "goodput.mark(text)",
        "goodput.stop(junk)", "goodput.stop(text)", "goodput.start(junk)", "goodput.start(text, junk, junk)",
        "goodput.start(directory=junk)", "goodput.start(directory=text)", "goodput.start(gpu_hour_cost=junk)",
        "goodput.start(); goodput.start(run=junk)", "goodput.start(); goodput.start(rank=junk)",
    ],
)  # fmt: skip
def test_arguments_that_raise_from_every_method(sdk, call):
    out = sdk(f"""{HOSTILE}
    made = {call.replace("; ", chr(10) + "    made = ")}
    if hasattr(made, "__enter__"):
        with made: pass
    with goodput.step(): pass
    goodput.start()
    with goodput.step(): pass
    """)
    snapshots = out.snapshots()
    if "directory=" not in call:
        assert sum(check(snapshot).steps_done for snapshot in snapshots) >= 1
    assert out.errors == "".join(line + "\n" for line in out.messages())
