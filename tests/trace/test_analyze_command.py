"""`goodput analyze`: text, JSON, exit status, several files, errors on standard error."""

import json
import os
import pty
import subprocess
import sys

import pytest
from support.trace.trace_maker import copy, kernel, launch, loader, note, op, step, write

from goodput.cli import main


def trace(path, rank=0, steps=3, **more):
    events = []
    for i in range(steps):
        at = 1000 * i
        events += [step(i, at, 1000), loader(at, 250), op(at + 250, 100), launch(at + 340, 5, i + 1)]
        events += [kernel(at + 350, 500, "gemm\x1b[31m", correlation=i + 1), copy(at + 850, 50)]
        events += [kernel(at + 800, 150, "ncclDevKernel_AllReduce(int)", stream=20)]
    return write(path, events, rank=rank, **more)


def run(capsys, *arguments) -> tuple[int, str, str]:
    status = main(["analyze", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_one_trace_as_text(tmp_path, capsys):
    status, out, err = run(capsys, trace(tmp_path / "t.json.gz", packed=True))
    assert status == 0 and err == ""
    lines = out.splitlines()
    assert lines[1] == "rank 0 of 8, GPU 0, 3 steps by ProfilerStep"
    # 1000 us: loader 250, host 100, compute 350-850, collective 800-950, and 50 in Python; in the last step no thread
    # knows what those are, since no work follows.
    rows = [line for line in lines if line.startswith("  ProfilerStep#")]
    assert len(rows) == 3
    assert rows[0].replace("%", "").split() == [
        "ProfilerStep#0",
        "1",
        "ms",
        "50.0",
        "10.0",
        "0.0",
        "25.0",
        "15.0",
        "0.0",
        "33.3",
    ]
    assert rows[2].replace("%", "").split() == [
        "ProfilerStep#2",
        "1",
        "ms",
        "50.0",
        "10.0",
        "0.0",
        "25.0",
        "10.0",
        "5.0",
        "33.3",
    ]
    assert "gemm?[31m" in out and "\x1b" not in out
    flat = " ".join(out.split())
    assert "largest cause: loader, 25.0 % of the steps' time; by its share 1.33x as fast" in flat
    assert "holds up each step by 250 µs" in flat
    assert max(map(len, lines[1:])) <= 80


def test_largest_cause_has_the_share_of_the_table(tmp_path, capsys):
    # Of 100 ms: loader 49.945, Python 40.015, compute 10.04. Rounded down a tenth is missing: the loader's is nearest.
    events = [step(0, 0, 100_000), loader(0, 49_945), op(49_945, 40_015)]
    events += [launch(89_950, 5, 1), kernel(89_960, 10_040, correlation=1)]
    _, out, _ = run(capsys, write(tmp_path / "t.json", events))
    (total,) = [line for line in out.splitlines() if line.startswith("  total")]
    assert "50.0%" in total
    assert "largest cause: loader, 50.0 % of the steps' time" in " ".join(out.split())


def test_json_document_closes(tmp_path, capsys):
    status, out, _ = run(capsys, trace(tmp_path / "t.json"), "--json")
    found = json.loads(out)
    assert status == 0 and found["version"] == 1 and found["errors"] == []
    (device,) = found["ranks"][0]["devices"]
    for row in [*device["steps"], device["total"], found["total"]]:
        assert sum(row["states_ns"].values()) == row["wall_ns"]
    assert found["total"]["states_ns"]["loader"] == 750_000


def test_title_shows_what_optimizer_steps_leave_out(tmp_path, capsys):
    marks = [note(100 * i, 10, "Optimizer.step#SGD.step") for i in range(3)]
    _, out, _ = run(capsys, write(tmp_path / "t.json", [op(0, 300), *marks]))
    flat = " ".join(out.split())
    assert "2 steps by Optimizer.step, each to its end; the time before and after is left out" in flat


def test_many_steps_and_ranks_fit_a_screen(tmp_path, capsys):
    _, out, _ = run(capsys, trace(tmp_path / "t.json", steps=57))
    assert "… and 41 more" in out and len(out.splitlines()) < 50
    paths = [trace(tmp_path / f"{rank}.json", rank=rank, steps=1) for rank in range(25)]
    _, out, _ = run(capsys, *paths)
    assert "25 ranks, 25 devices" in out and "… and 9 more" in out and len(out.splitlines()) < 50
    assert "exposed communication over 1 steps: 2.5 ms that all ranks paid" in " ".join(out.split())


def test_broken_file_is_reported_and_the_rest_used(tmp_path, capsys):
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph": "X"')
    files = [trace(tmp_path / "0.json"), broken, tmp_path / "none.json", trace(tmp_path / "1.json", rank=1)]
    status, out, err = run(capsys, *files, "--json")
    found = json.loads(out)
    assert status == 1 and [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert (
        len(found["errors"]) == 2 and "broken.json: byte 27 (line 1, column 28)" in err and "none.json" in err
    )
    status, out, err = run(capsys, broken)
    assert (status, out) == (1, "") and "the file ends in the middle" in err
    status, out, _ = run(capsys, broken, "--json")
    assert status == 1 and json.loads(out)["ranks"] == [] and json.loads(out)["total"]["wall_ns"] == 0


def test_skipped_events_are_reported_on_standard_error(tmp_path, capsys):
    path = write(tmp_path / "t.json", [kernel(0, 10), kernel(5, -1), kernel(6, -1)])
    status, out, err = run(capsys, path)
    assert status == 0 and "rank 0 of 8" in out
    assert (
        err == f"goodput analyze: {path}: 2 events left out: with a negative `dur` (the first is number 2)\n"
    )


def test_wrong_arguments(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["analyze"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["analyze", "--help"])
    assert caught.value.code == 0 and "example: goodput analyze" in capsys.readouterr().out


@pytest.mark.parametrize(("no_color", "coloured"), [(False, True), (True, False)])
def test_colour_only_on_a_terminal_that_allows_it(tmp_path, no_color, coloured):
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    if no_color:
        environment["NO_COLOR"] = "1"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "import sys; from goodput.cli import main; sys.exit(main())", "analyze"]
    try:
        done = subprocess.run(
            [*command, str(trace(tmp_path / "t.json"))],
            stdout=theirs,
            env=environment,
            timeout=300,
            check=True,
        )
        assert done.returncode == 0
        os.close(theirs)
        text = b""
        while True:
            try:
                text += os.read(ours, 65536)
            except OSError:  # Linux says so at the end.
                break
    finally:
        os.close(ours)
    assert (b"\x1b[32m" in text) == coloured and "█".encode() in text
