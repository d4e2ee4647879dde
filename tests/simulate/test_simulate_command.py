"""`goodput simulate`: a random cluster on an aggregator of its own, and wrong calls."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from goodput.cli import main


def test_stack_says_the_truth_of_two_seeds(tmp_path):
    """Two clusters of 16 ranks over 10 simulated minutes: slow ranks, hangs, restarts, lost and repeated reports."""
    command = [
        sys.executable,
        "-m",
        "goodput",
        "simulate",
        "--check",
        "--json",
        "--seed",
        "1",
        "--seeds",
        "2",
    ]
    files = ["--truth", "truth.json", "--save", "scenario.json"]
    done = subprocess.run(
        [*command, "--ranks", "16", "--seconds", "600", *files],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["failures"]) == (0, []), report["notes"]
    assert max(report["worst_states"].values()) < 0.01
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["scenario"] == json.loads((tmp_path / "scenario.json").read_text())
    for run in truth["runs"]:
        by_rank = [sum(rank["states_ns"].values()) for rank in run["ranks"]]
        assert sum(by_rank) / 1e9 == pytest.approx(run["gpu_seconds"])
        assert sum(run["states"].values()) == pytest.approx(run["gpu_seconds"])


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ([], "name an aggregator"),
        (["none.json", "--check"], "none.json: No such file"),
        (["--seeds", "2", "--aggregator", "http://127.0.0.1:1"], "--seeds: only with --check"),
    ],
)
def test_wrong_calls_exit_with_2(monkeypatch, capsys, arguments, problem):
    monkeypatch.delenv("GOODPUT_AGGREGATOR", raising=False)
    assert main(["simulate", *arguments]) == 2
    assert problem in capsys.readouterr().err
