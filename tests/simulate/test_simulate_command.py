"""`goodput simulate`: a random cluster on an aggregator of its own, and wrong calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from goodput.cli import main
from goodput.cli import simulate as command
from goodput.simulate.check.results import BYTES_MAX
from goodput.simulate.check.simulation import Outcome


def test_stack_says_the_truth_of_two_seeds(tmp_path):
    """Two clusters of 16 ranks over 10 simulated minutes: slow ranks, hangs, restarts, lost and repeated reports."""
    simulate = [
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
        [*simulate, "--ranks", "16", "--seconds", "600", *files],
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
        (["--seeds", "2", "--aggregator", "http://127.0.0.1:1"], "--seeds and --results: only with --check"),
        (["a.toml", "--check", "--results", "b"], "--seeds and --results: only with --check and without"),
        (["--check", "none.toml"], "none.toml: No such file"),
    ],
)
def test_wrong_calls_exit_with_2(monkeypatch, capsys, arguments, problem):
    monkeypatch.delenv("GOODPUT_AGGREGATOR", raising=False)
    assert main(["simulate", *arguments]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--check", "http://127.0.0.1:1"], "http://127.0.0.1:1: "),
        (["--aggregator", "http://127.0.0.1:1"], "http://127.0.0.1:1: "),
        (["--check", "--truth", "/none/truth.json"], "/none/truth.json: No such file or directory"),
    ],
)
def test_calls_that_cannot_succeed_end_at_once(capsys, arguments, problem):
    assert main(["simulate", *arguments]) == 1
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("check", ["localhost:9471", "http://a:1,b:2", "ftp://a"])
def test_wrong_urls_to_check(capsys, check):
    with pytest.raises(SystemExit):
        main(["simulate", "--check", check])
    assert "expected a URL such as" in capsys.readouterr().err


def test_seeds_with_results_are_not_played_again(monkeypatch, capsys, tmp_path):
    """An interrupted series goes on: a line that was cut off is played again, all others count."""
    played = []

    def play(arguments, target, seed):
        played.append(seed)
        states = {"productive": 10.0 if seed < 3 else 9.0, "down": 0.0}
        run = {"run": f"run-{seed}", "gpu_seconds": 10.0, "states": {"productive": 10.0}}
        truth = {
            "runs": [{**run, "culprits": [], "hangs": [], "stall_threshold_seconds": 60.0}],
            "health": [],
        }
        account = {run["run"]: {"gpu_seconds": 10.0, "states": states}}
        return Outcome(
            truth, {run["run"]: []}, account, {run["run"]: []}, {run["run"]: []}, pushes={"accepted": 3}
        )

    def check(*arguments) -> tuple[int, dict]:
        code = main(["simulate", "--check", "--json", "--results", str(file), *arguments])
        return code, json.loads(capsys.readouterr().out)

    monkeypatch.setattr(command, "_play", play)
    file = tmp_path / "seeds.jsonl"
    assert check("--seeds", "2")[1]["pushes"] == {"accepted": 6}
    assert check("--seeds", "3")[0] == 0 and played == [0, 1, 2]
    assert check("--seeds", "2", "--innocent")[0] == 0 and played == [0, 1, 2, 0, 1]
    file.write_bytes(file.read_bytes()[:-10])
    code, report = check("--seed", "1", "--innocent", "--seeds", "3")
    assert played[5:] == [1, 2, 3] and len(file.read_bytes().splitlines()) == 7
    assert (code, report["failures"]) == (
        1,
        ["run-3: productive is 9.0 GPU-seconds, 10.0 in truth: 10.00% off"],
    )
    assert check("--seed", "1", "--innocent", "--seeds", "3") == (code, report)
    # A reader that has gone, as `head`, is no error of a file.
    shown = [sys.executable, "-m", "goodput", "simulate", "--check", "--innocent", "--seed", "1"]
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([*shown, "--results", str(file)], stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")
    file.write_text('{"seed": 1}\n')
    assert main(["simulate", "--check", "--results", str(file)]) == 2
    assert "line 1 is no result" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["notes", "notes\nand more", '{"seed": 1}\n{"seed": 2'])
def test_file_with_something_else_than_results_keeps_its_last_line(capsys, tmp_path, text):
    file = tmp_path / "notes.txt"
    file.write_text(text)
    assert main(["simulate", "--check", "--results", str(file)]) == 2
    assert f"{file}: line 1 is no result of a seed" in capsys.readouterr().err
    assert file.read_text() == text


def test_file_of_results_is_read_up_to_a_bound(capsys):
    assert main(["simulate", "--check", "--results", "/dev/zero"]) == 2
    assert f"/dev/zero: more than {BYTES_MAX} bytes" in capsys.readouterr().err
