"""`goodput compare`: the parts add up exactly, refusals say what differs, and the exit status fits CI."""

import json
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.compare.logs import autocorrelated, write_log

from goodput.cli import main
from goodput.compare.comparison import compare
from goodput.compare.figures import DOLLARS, GOODPUT_OF_RUN, GOODPUT_OF_STEPS, Figure
from goodput.compare.steps import read
from goodput.compare.text import _dollar_change, render, signed


@pytest.fixture
def log(tmp_path):
    """A function that writes a log of 300 steps of this length, with 2 % noise, and returns its path."""

    def write(name: str, seconds: float, loader: float = 0.1, seed: int = 0, **declared) -> str:
        noise = 0.01 * autocorrelated(np.random.default_rng([seed, *name.encode()]), 301, 0.5)[0]
        return write_log(tmp_path / f"{name}.jsonl", seconds + noise, loader, name=name, **declared)

    return write


def test_parts_add_up_to_the_whole(log):
    base, new = read(log("before", 0.5)), read(log("after", 0.46, loader=0.06))
    found = compare([base], [new])
    for column in ("base_ns", "new_ns", "change_ns"):
        assert sum(getattr(one, column) for one in found.states) == getattr(found.step, column)
    exact = Fraction(int(base.states.sum()), 2 * len(base))
    assert len(base) == 300 and abs(found.step.base_ns - exact) <= Fraction(1, 2)
    loader = found.states[0]
    assert loader.name == "loader" and loader.share == pytest.approx(-0.08, abs=1e-3)
    assert found.step.is_significant and found.step.share_low < -0.08 < found.step.share_high


def test_text_has_verdict_table_and_cost(log, capsys):
    runs = [log("before", 0.5, gpu_hour_cost=3.6), log("after", 0.46, loader=0.06, gpu_hour_cost=3.6)]
    assert main(["compare", *runs, "--fail-if-slower", "2%"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "base  before: 2 ranks, 300 steps, 1 left out" in text
    assert "step -8." in text and ": loader -8.0" in text and "a thousand steps: $1.00, now $0.92" in text
    assert main(["compare", *runs, "--markdown"]) == 0
    assert "| loader | 100.00 | 60.00 | -40.00 | -8.0 % |" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["compare", "replay"])
def test_stall_has_one_spelling_everywhere(log, capsys, command):
    """A silence of 40 s between steps is a stall, and not productive, only where the least is below it."""
    paths = [Path(log(name, 0.5)) for name in ("before", "after")]
    for path in paths:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        late = 150 * 0.5
        for line in lines:
            if line["kind"] == "step" and line["time"] > late:
                line["time"] += 40
                if line["time"] < late + 40 + 0.7:
                    line["seconds"] += 40
                    line["phases"]["forward"] = line["phases"].get("forward", 0) + 40
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = []
    for seconds in ("10", "1000"):
        words = paths if command == "compare" else paths[:1]
        assert main([command, *map(str, words), "--json", "--stall", seconds]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1]


@pytest.mark.parametrize(
    ("value", "text"), [(-0.0004, "+0.00"), (0.0004, "+0.00"), (-0.006, "-0.01"), (1234.5, "+1,234.50")]
)
def test_what_is_rounded_to_zero_has_no_minus(value, text):
    assert signed(value, 2) == text


def test_changes_of_pace_fit_the_terminal(log):
    names = "base-of-the-experiment", "with-a-cache-for-decoded-images"
    base, new = (read(log(name, seconds)) for name, seconds in zip(names, (0.5, 0.46), strict=True))
    found = compare([base], [new])
    sides = [msgspec.structs.replace(found.new[0], changes=[(2_000_000, 0.071), (3_000_000, -0.112)])]
    text = render(msgspec.structs.replace(found, new=sides))
    assert "+7.1 % from step 2000000, -11.2 % from step 3000000" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("steps", "of_steps", "of_run", "is_said"),
    [(50, 0.02, -0.2, True), (300, 0.02, -0.2, False), (50, -0.1, -0.2, False), (50, 0.02, -0.005, False)],
)
def test_a_shorter_run_says_why_its_goodput_fell(log, steps, of_steps, of_run, is_said):
    """Of the same length, with worse steps, or by less than a point, it has another reason or none."""
    found = compare([read(log("before", 0.5))], [read(log("after", 0.5))])
    figures = [
        Figure(GOODPUT_OF_STEPS, 0.8, 0.8 + of_steps, of_steps, of_steps - 0.01, of_steps + 0.01, True),
        Figure(GOODPUT_OF_RUN, 0.7, 0.7 + of_run, of_run, None, None, False),
    ]
    new = [msgspec.structs.replace(found.new[0], steps=steps)]
    text = " ".join(render(msgspec.structs.replace(found, figures=figures, new=new)).split())
    why = f"it made {steps} steps, the base 300, so starting up weighs more"
    assert (why in text) == is_said


@pytest.mark.parametrize(
    ("change", "half", "words"),
    [(-0.053, 0.0042, "-0.053 ± 0.004"), (-0.05, 0.012, "-0.05 ± 0.01"), (12.3, 1.6, "+12.30 ± 1.60"),
     (0.0002, 0.0, "+0.00 ± 0.00"), (1e-9, 1e-12, "+0.000000 ± 0.000000")],
)  # fmt: skip
def test_dollars_have_the_decimals_of_their_interval(change, half, words):
    one = Figure(DOLLARS, 1.0, 1.0 + change, change, change - half, change + half, True)
    assert _dollar_change(one) == words
    assert _dollar_change(msgspec.structs.replace(one, low=None)) == f"{change:+,.2f}"


def test_exit_status_shows_slower_runs(log, capsys):
    base, slower, same = log("base", 0.5), log("slower", 0.52), log("same", 0.5, seed=1)
    assert main(["compare", base, slower, "--fail-if-slower", "0.02"]) == 1
    assert "slower by 3." in capsys.readouterr().err
    assert main(["compare", base, slower, "--fail-if-slower", "6%"]) == 0
    assert main(["compare", base, same, "--fail-if-slower", "0%"]) == 0
    assert "no difference beyond chance" in capsys.readouterr().out
    assert main(["compare", slower, base]) == 0


def test_several_runs_a_side(log, capsys):
    base = [log(f"a{n}", 0.5) for n in range(3)]
    new = [log(f"b{n}", 0.48) for n in range(3)]
    assert main(["compare", *base, "--to", *new, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["run"] for one in found["new"]] == ["b0", "b1", "b2"]
    assert found["step"]["share"] == pytest.approx(-0.04, abs=0.005) and found["step"]["is_significant"]


def test_what_is_not_comparable_is_refused(log, capsys):
    base = log("base", 0.5, device="H100")
    for other, words, option in (
        (log("wide", 0.5, ranks=4), "2 and 4 ranks", ["--any-size"]),
        (log("batch", 0.5, samples=64), "32 and 64 samples a step", ["--per", "sample"]),
        (log("device", 0.5, device="A100"), "A100 and H100", ["--any-device"]),
    ):
        assert main(["compare", base, other]) == 2
        error = capsys.readouterr().err
        assert words in error and " ".join(option) in error
        assert main(["compare", base, other, *option]) == 0
        capsys.readouterr()


def test_repeated_steps_count_as_they_were_kept(tmp_path):
    """A second attempt begins at step 30 again: its first step is left out, and what was lost is not counted."""
    path = tmp_path / "restarted.jsonl"
    write_log(path, np.full(50, 0.5), ranks=1)
    lines = path.read_text().splitlines()[:-1]
    again = [{"kind": "attempt", "time": 40, "rank": 0, "attempt": 2, "resume_step": 29}]
    again += [
        {"kind": "step", "time": 45 + 0.6 * n, "attempt": 2, "step": 30 + n, "seconds": 0.6, "samples": 32}
        for n in range(40)
    ]
    path.write_text("\n".join([*lines, *map(json.dumps, again)]) + "\n")
    found = read(str(path))
    assert found.first == [0, 30] and found.numbers.tolist() == [*range(1, 30), *range(31, 70)]
    assert found.lengths[found.numbers > 30] == pytest.approx(6e8, abs=1)


@pytest.mark.parametrize(
    "words, expected, status",
    [
        (["one.jsonl"], "two runs are compared", 2),
        (["no.jsonl", "no.jsonl"], "no.jsonl", 1),
        (["a", "b", "--fail-if-slower", "much"], "expected a share such as 2%", 2),
    ],
)
def test_wrong_calls_say_what_is_wrong(words, expected, status, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        assert main(["compare", *words]) == status
    except SystemExit as left:
        assert left.code == status
    assert expected in capsys.readouterr().err


def test_short_runs_and_several_runs_of_a_log_are_refused(tmp_path, log, capsys):
    short = write_log(tmp_path / "short.jsonl", np.full(15, 0.5))
    assert main(["compare", short, short]) == 1
    assert "14 steps that can be compared, at least 20" in capsys.readouterr().err
    one, other = log("x", 0.5), log("y", 0.5)
    both = tmp_path / "both.jsonl"
    runs = [(name, Path(path).read_text().splitlines()) for name, path in (("x", one), ("y", other))]
    lines = [{**json.loads(line), "run": name} for name, run in runs for line in run]
    both.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["compare", str(both), one]) == 1
    assert "name one as" in capsys.readouterr().err
    assert main(["compare", f"{both}#x", f"{both}#y"]) == 0
    assert main(["compare", f"{both}#z", one]) == 1
    assert "no steps of a run 'z'" in capsys.readouterr().err


def test_lines_that_cannot_be_used_are_printed_and_fail_the_call(tmp_path, log, capsys):
    """Once for a log that is named twice; up to 1 % of the step lines the status stays."""
    path = Path(log("run", 0.5))
    lines = path.read_text().splitlines()
    steps = [at for at, line in enumerate(lines) if json.loads(line)["kind"] == "step"]
    for broken, status in ((1, 0), (30, 1)):
        some = [line if at not in steps[-broken:] else line[:-9] for at, line in enumerate(lines)]
        (tmp_path / "broken.jsonl").write_text("\n".join(some) + "\n")
        windows = [f"{tmp_path}/broken.jsonl@{part}" for part in ("..150", "150..")]
        assert main(["compare", *windows]) == status
        told = capsys.readouterr().err
        assert told.count(f"{broken} of {len(steps)} step lines cannot be used") == 1, told
        assert main(["compare", f"{tmp_path}/broken.jsonl@..10", windows[1]]) == 1
        assert f"least 20 are needed; {broken} of" in capsys.readouterr().err
