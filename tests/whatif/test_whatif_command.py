"""`goodput whatif`: what is known is ranked, what is not is listed, and the text fits 80 columns."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from support.whatif.runs import write_run

from goodput.cli import main
from goodput.defaults import STALL_SECONDS
from goodput.whatif import read as read_module
from goodput.whatif.read import read


@pytest.fixture
def own():
    """Seconds by phase of 8 ranks in 120 steps; rank 5's loader is slow."""
    random = np.random.default_rng(4)
    loader = np.full((120, 8), 0.05)
    loader[:, 5] = 0.1
    return {"loader": loader, "forward": 0.4 + 0.002 * random.standard_normal((120, 8))}


def answers(capsys, *words: str) -> dict:
    assert main(["whatif", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {**found, "by_change": {one["change"]: one for one in found["answers"]}}


def test_slow_loader_is_named_and_priced(tmp_path, own, capsys):
    path = write_run(tmp_path / "run.jsonl", own, gpu_hour_cost=36)
    found = answers(capsys, path)
    one = found["by_change"]["rank 5's loader as fast as the median"]
    assert (one["kind"], one["state"], one["rank"], one["host"]) == ("rank", "loader", 5, "n2")
    without = {**own, "loader": np.full((120, 8), 0.05)}
    seconds = [(one["loader"] + one["forward"]).max(axis=1) + 0.01 for one in (own, without)]
    saved, whole = (seconds[0] - seconds[1])[1:].sum(), 1 + seconds[0].sum()
    assert one["gain"] == pytest.approx(whole / (whole - saved) - 1, rel=0.01)
    assert one["gain_low"] < one["gain"] < one["gain_high"] and one["basis"] == "replayed"
    assert one["gpu_hours"] == pytest.approx(8 * saved / 3600, rel=0.01)
    assert one["dollars"] == pytest.approx(36 * one["gpu_hours"])
    hours = [each["gpu_hours"] for each in found["answers"]]
    assert hours == sorted(hours, reverse=True) and found["steps_replayed"] == 119
    assert found["by_change"]["no waiting for the loader"]["gain"] > one["gain"]
    assert (
        found["by_change"]["node n2 left out"]["gain"]
        < 0
        < found["by_change"]["node n2 left out"]["gpu_hours"]
    )
    assert found["gains"]["loader"] == pytest.approx(
        1 + found["by_change"]["no waiting for the loader"]["gain"], rel=0.02
    )
    assert {each["reason"] for each in found["unknown"]} == {"no failure was seen", "no restart was seen"}


@pytest.mark.parametrize(("head", "hours"), [({}, "GPU-hours"), ({"without_gpu": True}, "process-hours")])
def test_hours_are_of_processes_where_no_gpu_is(tmp_path, own, capsys, head, hours):
    path = write_run(tmp_path / "run.jsonl", own, **head)
    assert main(["whatif", str(path)]) == 0
    said = capsys.readouterr().out
    assert hours in said and ("GPU" in said) == (hours == "GPU-hours")


def test_stall_is_the_accounts(tmp_path, own, capsys, monkeypatch):
    """Which steps are stalls is said as to the other commands."""
    given, replay = [], read_module.replay

    def noted(*words, stall_seconds, **more):
        given.append(stall_seconds)
        return replay(*words, stall_seconds=stall_seconds, **more)

    monkeypatch.setattr(read_module, "replay", noted)
    path = str(write_run(tmp_path / "run.jsonl", own))
    assert main(["whatif", path, "--stall", "12.5"]) == main(["whatif", path]) == 0
    assert given == [12.5, STALL_SECONDS]


def test_waits_for_cores_are_reported(tmp_path, own, capsys):
    """Of each node, where they are 2 % or more; a share above one in a log is left out."""
    lines = Path(write_run(tmp_path / "run.jsonl", own)).read_text().splitlines()
    shares = {0: 0.01, 1: 0.02, 2: 0.1, 3: 0.2, 4: 0.05, 6: 7.0}
    for at, line in enumerate(lines):
        found = json.loads(line)
        if found["kind"] == "attempt" and found["rank"] in shares:
            lines[at] = json.dumps({**found, "core_wait_ratio": shares[found["rank"]]})
    path = tmp_path / "waits.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert answers(capsys, str(path))["core_waits"] == pytest.approx({"n1": 0.15, "n2": 0.025})
    assert main(["whatif", str(path)]) == 0
    text = capsys.readouterr().out
    assert "so gains may differ\n" in text
    assert "ranks on n1 waited 15 % of their time for a core (on 2 nodes over 2 %):\n" in text
    assert max(map(len, text.splitlines())) <= 80


def test_text_fits_the_terminal(tmp_path, own, capsys):
    assert main(["whatif", write_run(tmp_path / "run.jsonl", own, gpu_hour_cost=2)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("run: 8 ranks, 0.14") and "119 of 120 steps replayed" in lines[1]
    assert any(
        line.startswith("rank 5's loader as fast as the median") and "+9.9 %" in line for line in lines
    )
    assert "  checkpoints at the best interval: no failure was seen" in lines


def test_waits_that_were_not_measured_are_unknown(tmp_path, own, capsys):
    path = write_run(tmp_path / "run.jsonl", own)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    for line in lines:
        line.get("phases", {}).pop("communication", None)
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = answers(capsys, path)
    assert found["answers"] == [] and found["gains"] == {}
    assert "no communication was measured" in found["unknown"][0]["reason"]
    assert main(["whatif", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and found["unknown"][0]["reason"] in " ".join(" ".join(lines).split())


def test_one_rank_has_no_ranks_to_compare(tmp_path, own, capsys):
    alone = {phase: seconds[:, 5:6] for phase, seconds in own.items()}
    found = answers(capsys, write_run(tmp_path / "run.jsonl", alone, exchange=0.0))
    assert list(found["by_change"]) == ["no waiting for the loader"]
    saved, whole = 119 * 0.1, 1 + (own["loader"] + own["forward"])[:, 5].sum()
    assert found["answers"][0]["gain"] == pytest.approx(whole / (whole - saved) - 1)


def test_failures_restarts_and_checkpoints(tmp_path, capsys):
    """Three attempts of 60 s with saves of 2 s after every 8 s of work, then 30 s until the next step.

    By hand: 2 failures in 210 s, so 105 s between; Daly: sqrt(2 * 2 * 105) (1 + sqrt(2 / 210) / 3) = 21.2 s with the save.
    """
    lines, time = [{"kind": "run", "time": 0, "run": "run"}], 0.0
    for attempt in (1, 2, 3):
        lines.append(
            {
                "kind": "attempt",
                "time": time,
                "rank": 0,
                "attempt": attempt,
                "resume_step": 56 * (attempt - 1) - 1,
            }
        )
        for step in range(56 * (attempt - 1), 56 * attempt):
            saves = step % 8 == 7
            time += 1 + 2 * saves
            phases = {"forward": 1.0, "checkpoint": 2.0 * saves}
            lines.append(
                {
                    "kind": "step",
                    "time": time,
                    "rank": 0,
                    "step": step,
                    "seconds": 1 + 2 * saves,
                    "phases": phases,
                }
            )
            if saves:
                lines.append({"kind": "checkpoint", "time": time, "rank": 0, "step": step})
        lines.append(
            {"kind": "end", "time": time, "rank": 0, "reason": "failed" if attempt < 3 else "finished"}
        )
        time += 30
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = answers(capsys, str(path))["by_change"]
    restarts = found["restarts twice as fast"]
    assert restarts["gpu_hours"] == pytest.approx(30 / 3600) and "2 restarts" in restarts["note"]
    best = found["checkpoints at the best interval"]
    assert best["note"] == "every 21 s instead of 10 s" and best["basis"] == "estimated"
    assert found["checkpoints saved in the background"]["gpu_hours"] == pytest.approx(21 * 2 / 3600, rel=0.02)


@pytest.mark.parametrize(
    "words, status, expected",
    [
        (["whatif", "none.jsonl"], 1, "none.jsonl"),
        (["whatif", "two.jsonl"], 1, "2 runs (a, b); name one as two.jsonl#RUN"),
        (["whatif", "two.jsonl#c"], 1, "no run 'c'; there are 'a', 'b'"),
        (["whatif"], 2, "RUN"),
    ],
)
def test_wrong_calls_say_what_is_wrong(words, status, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = [{"kind": "step", "run": run, "time": 2, "step": 0, "seconds": 1} for run in "ab"]
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, runs)))
    try:
        assert main(words) == status
    except SystemExit as left:
        assert left.code == status
    assert expected in capsys.readouterr().err


def test_blocks_tell_the_same_as_lines_one_by_one(tmp_path, monkeypatch, capsys):
    """A log that is read in blocks, with a step that is repeated, one that overlaps the one before, and phases between."""
    random = np.random.default_rng(6)
    own = {"loader": 0.05 + 0.01 * random.random((200, 4)), "forward": 0.1 + 0.01 * random.random((200, 4))}
    path = tmp_path / "run.jsonl"
    write_run(path, own)
    lines = path.read_text().splitlines()
    lines.insert(300, lines[200])
    for at in (400, 450):
        step = json.loads(lines[at])
        lines[at] = json.dumps({**step, "seconds": step["seconds"] * (1.5 if at == 400 else 0.5)})
    saved = json.loads(lines[500])
    lines.insert(
        501,
        json.dumps(
            {**saved, "kind": "phase", "phase": "checkpoint", "time": saved["time"] + 0.05, "seconds": 0.05}
        ),
    )
    path.write_text("\n".join(lines))
    found = [answers(capsys, str(path))]
    for module in ("replay", "column_scan"):
        monkeypatch.setattr(sys.modules[f"goodput.runlog.{module}"], "columns_of", lambda *_: None)
    found.append(answers(capsys, str(path)))
    assert found[0] == found[1] and found[0]["answers"]


def test_newest_steps_stand_for_all(tmp_path):
    """Of a run that is longer than what is kept, the savings are still those of all steps."""
    path = write_run(
        tmp_path / "run.jsonl", {"loader": np.full((400, 2), 0.1), "forward": np.full((400, 2), 0.3)}
    )
    found, _ = read(path, rows_max=200)
    assert found.steps_replayed <= 100
    assert found.answers[0].gpu_hours == pytest.approx(399 * 2 * 0.1 / 3600)


@settings(max_examples=60, deadline=None)
@given(data=strategies.data())
def test_any_steps_give_an_answer(data, tmp_path_factory):
    """Hostile values of every field: an answer or a message, never a traceback."""
    number = strategies.one_of(
        strategies.integers(-1, 60), strategies.sampled_from([0, 1e-9, 0.5, 1e9, -1.0, 2**61, 4e9, 1e300])
    )
    step = strategies.fixed_dictionaries(
        {"kind": strategies.just("step"), "time": number, "rank": strategies.integers(0, 2), "step": number},
        optional={"seconds": number, "count": number, "attempt": strategies.integers(0, 2), "phases": strategies.dictionaries(
            strategies.sampled_from(["loader", "communication", "checkpoint", "forward", "x"]), number, max_size=4)},
    )  # fmt: skip
    ordinary = [
        {"kind": "step", "time": 2 + n, "rank": rank, "step": n, "seconds": 1, "phases": {"forward": 0.5, "communication": 0.1}}
        for n in range(30) for rank in range(3)
    ]  # fmt: skip
    lines = ordinary + data.draw(strategies.lists(step, max_size=12))
    path = tmp_path_factory.mktemp("any") / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert main(["whatif", str(path)]) in (0, 1)
    assert main(["whatif", str(path), "--json"]) in (0, 1)


def test_lines_that_cannot_be_used_fail_the_call(tmp_path, own, capsys):
    path = Path(write_run(tmp_path / "run.jsonl", own))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-30], *(line[:-9] for line in lines[-30:])]) + "\n")
    assert main(["whatif", str(path)]) == 1
    captured = capsys.readouterr()
    assert "29 of 960 step lines cannot be used" in captured.err and "what if" in captured.out
