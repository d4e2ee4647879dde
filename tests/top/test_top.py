"""What `goodput top` makes of documents, pages and keys; and what it prints once."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from support.account.account_history import Process, account_of
from support.rank_page.page_maker import Rank

from goodput.account import document
from goodput.causes import explain
from goodput.cli import main
from goodput.progress.local_runs import Pace
from goodput.top.api import ApiSource
from goodput.top.draw import body
from goodput.top.glyphs import Glyphs, is_utf8
from goodput.top.gpus import figures
from goodput.top.keys import keys_of
from goodput.top.model import Frame, History, RankRow, SourceError, run_view
from goodput.top.polling import Polling
from goodput.top.rank_lines import rank_lines
from goodput.top.trouble import troubles
from goodput.top.view import OPEN, QUIT, RANK, RUN, STACK, View

LIVE = {"attempt": 1, "alive": True, "ended": "", "phase": "forward", "phase_seconds": 0.1, "step": 19}


def found(hang=None, live=(), ranks=3, now=21):
    """Three ranks with a step of 1 s each; `live` changes what they do now."""
    processes = [
        Process(rank, 1, host=f"n{rank}", world_size=ranks).between(none=1).steps(20, loader=0.2, forward=0.8)
        for rank in range(ranks)
    ]
    account = account_of(*processes, now=now)
    lives = [
        {**LIVE, "rank": rank, "host": f"n{rank}", "step_seconds": 1.0, "report_age_seconds": 1.0}
        | dict(live).get(rank, {})
        for rank in range(ranks)
    ]
    return {**document(account, explain(account)), "hang": hang, "live": lives}


def test_troubles():
    hang = {"culprit": 1, "suspects": [
        {"rank": 1, "kind": "elsewhere", "phase": "none", "seconds": 75.0},
        {"rank": 2, "kind": "silent", "phase": "forward", "seconds": 60.0},
    ]}  # fmt: skip
    wrong = troubles(found(hang))
    assert wrong == {1: (5, "hangs: no phase 75 s"), 2: (3, "suspect: silent")}
    live = {
        0: {"alive": False, "ended": "killed"},
        1: {"phase_seconds": 12.0},
        2: {"report_age_seconds": 31.0},
    }
    assert troubles(found(live=live)) == {
        0: (4, "killed"),
        1: (3, "long forward 12 s"),
        2: (4, "silent 31 s"),
    }
    # Waiting, or in a planned phase, is no trouble of its own.
    for phase in ("communication", "checkpoint", "evaluation"):
        assert troubles(found(live={1: {"phase": phase, "phase_seconds": 100.0}})) == {}
    slow = found()
    slow["straggler"]["slow_issue"] = {"rank": 2, "operation": "all_reduce"}
    assert troubles(slow) == {2: (2, "slow: all_reduce")}


def test_ranks_are_sorted_by_trouble_and_by_keys():
    live = {2: {"alive": False, "ended": "killed"}, 1: {"step_seconds": 3.0}}
    opened = run_view(found(live=live), Pace(1.0, [1.0], ""), History(), 0.0)
    frame, view = Frame("", 0.0, [], opened), View("r1")
    order = lambda: [row.rank for row in view.rows(frame)]  # noqa: E731
    assert order() == [2, 0, 1]
    view.key("s", frame)
    assert (view.order, order()) == ("rank", [0, 1, 2])
    view.key("r", frame)
    assert (view.order, order()) == ("rank reversed", [2, 1, 0])
    view.key("r", frame)
    view.key("s", frame)
    assert (view.order, order()) == ("step time", [1, 0, 2])
    for key in ("/", "n", "9", "backspace", "2", "enter"):
        assert view.key(key, frame) == ""
    assert (view.filter, order()) == ("n2", [2])
    view.key("enter", frame)
    assert (view.level, view.rank, view.key("t", frame)) == (RANK, 2, STACK)
    view.key("escape", frame)
    assert (view.level, view.filter) == (RUN, "n2")
    view.key("escape", frame)
    assert (view.filter, order()) == ("", [1, 0, 2])
    assert view.selected(view.rows(frame)) == 2  # Rank 2, which was opened.
    view.key("up", frame)
    assert view.selected(view.rows(frame)) == 1
    assert view.key("q", frame) == QUIT


def test_lines_of_a_run_that_hangs():
    """The verdict comes before the bar, nothing is wider than the screen, and a low screen keeps verdict and ranks."""
    suspect = {"rank": 1, "kind": "elsewhere", "phase": "backward", "seconds": 75.0}
    hang = {
        "culprit": 1,
        "suspects": [suspect],
        "reason": "rank 1 on n1 is in backward; 2 ranks wait in communication",
    }
    document = found({**hang, "stack": "main (train.py:7)", "stack_rank": 1})
    frame = Frame("", 0.0, [], run_view(document, Pace(None, [1.0], "last 1 steps"), History(), 0.0))
    for width, rows_max in ((80, 22), (60, 10), (140, 38)):
        lines = [line.plain for line in body(frame, View("r1"), width, Glyphs(False, False), rows_max)]
        text = "\n".join(lines)
        assert "hangs" in lines[0] and max(map(len, lines)) <= width and len(lines) <= rows_max
        assert text.index("HANG rank 1 on n1 is in") < text.index("RANK") < text.index("hangs:"), text
    view = View("r1")
    view.key("enter", frame)
    assert "main (train.py:7)" in "\n".join(
        line.plain for line in body(frame, view, 80, Glyphs(False, False))
    )


def test_a_chosen_run_is_opened():
    opened = run_view(found(), Pace(1.0, [1.0], ""), History(), 0.0)
    view = View()
    assert view.seen(Frame("", 0.0, [], None)) == ""  # Before the first page.
    from goodput.top.model import run_row

    rows = [run_row(found()), run_row({**found(), "run": "r2"})]
    view.seen(Frame("", 0.0, rows, None))
    frame = Frame("", 0.0, rows, opened)
    view.seen(frame)
    assert (view.level, view.key("down", frame), view.key("enter", frame), view.run) == (
        "runs",
        "",
        OPEN,
        "r2",
    )


def test_run_that_opens_by_itself_is_read_from_then_on():
    """It may be over: another one that begins later would be read instead, and this one never shown again."""
    from goodput.top.model import run_row

    view, opened = View(), run_view(found(), Pace(1.0, [1.0], ""), History(), 0.0)
    frame = Frame("", 0.0, [run_row(found())], opened)
    assert [view.seen(frame), view.level, view.run, view.seen(frame)] == [OPEN, RUN, "r1", ""]


def test_states_are_of_the_last_minute_once_it_was_watched():
    """After 30 s more in the loader its time of the window is all loader; before, the time since the start."""
    history = History()
    first = found()
    history.add(first, 100.0)
    states, seconds = history.states(first["ranks"][0], 100.0)
    assert seconds is None and states["productive"] == pytest.approx(16)
    later = {
        **first,
        "ranks": [{**rank, "states": {**rank["states"], "loader": 34.0}} for rank in first["ranks"]],
    }
    history.add(later, 130.0)
    states, seconds = history.states(later["ranks"][0], 130.0)
    assert seconds == 30.0
    assert {s: t for s, t in states.items() if t} == {"loader": pytest.approx(30.0)}


def test_bars_and_sparklines():
    plain, colour = Glyphs(False, False), Glyphs(True, True)
    states = {"productive": 5.0, "loader": 3.0, "lost": 2.0}
    assert plain.bar(states, 10).plain == "=====LLLXX"
    assert plain.bar(states, 4).plain == "==LX"
    assert plain.bar({}, 4).plain == "    "
    assert colour.bar(states, 10).plain == "█" * 10
    assert len({span.style for span in colour.bar(states, 10).spans}) == 3
    assert colour.sparkline([1.0, None, 8.0], 10) == "▁ █"
    assert plain.sparkline([1.0, 8.0, 1.0, 1.0], 2) == "@_"
    assert colour.sparkline([1.0, 1.01, 1.0], 10) == "▁▁▁"
    assert colour.sparkline([None], 5) == colour.sparkline([], 5) == ""


def test_utf8_needs_stream_and_locale():
    assert is_utf8("utf-8", {"LANG": "en_US.UTF-8"})
    assert not is_utf8("utf-8", {"LANG": "en_US.UTF-8", "LC_ALL": "C"})
    assert not is_utf8("iso8859-1", {"LANG": "en_US.UTF-8"})
    assert not is_utf8("utf-8", {})


def test_keys():
    assert keys_of("\x1b[A\x1bOBj\r\x7f\x1b[5~\x1b") == [
        "up",
        "down",
        "j",
        "enter",
        "backspace",
        "pageup",
        "escape",
    ]
    assert keys_of("\x1b[1;5A\x1b[200~ä\x00") == ["ä"]
    assert keys_of("\x1b[") == []


def test_gpus_of_the_agents_series():
    text = """# HELP goodput_gpu_activity_ratio …
goodput_gpu_rank_info{gpu="GPU-a",run="r1",rank="0"} 1
goodput_gpu_rank_info{gpu="GPU-b",run="r1",rank="0"} 1
goodput_gpu_rank_info{gpu="GPU-c",run="r2",rank="1"} 1
goodput_gpu_activity_ratio{gpu="GPU-a",unit="sm"} 0.1
goodput_gpu_activity_ratio{gpu="GPU-a",unit="utilization"} 0.5
goodput_gpu_activity_ratio{gpu="GPU-b",unit="utilization"} 1.0
goodput_gpu_power_watts{gpu="GPU-a"} 300
goodput_gpu_power_watts{gpu="GPU-b"} 400
other_total{gpu="GPU-b"} 1
"""
    assert figures(text, "r1") == {0: (0.75, 700.0)}
    assert figures(text, "r2") == {1: (None, None)}
    assert figures("goodput_gpu_power_watts{gpu=", "r1") == {}


def test_pages_printed_once(tmp_path, capsys):
    """As text and as JSON; a broken page is named and loses nothing else."""
    Rank(tmp_path, run="mine", rank=0, world_size=1, total_steps=100).train(20)
    (tmp_path / "torn.page").write_bytes(b"x")
    options = ["--directory", str(tmp_path), "--agent", "http://127.0.0.1:1"]
    assert main(["top", *options, "--once"]) == 0
    text = capsys.readouterr().out
    assert "20 of 100 steps (20.0 %)" in text and "torn.page" in text and "\x1b" not in text
    assert main(["top", *options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["opened"]["progress"]["share"] == 0.2
    assert printed["opened"]["ranks"][0]["step"] == 19 and printed["opened"]["ranks"][0]["pid"] == os.getpid()
    assert main(["top", *options, "--once", "other"]) == 1
    assert "no run other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "width"), [(None, 80), ("60", 60), ("140", 140), ("wide", 80), ("0", 80)]
)
def test_a_pipe_is_printed_to_as_wide_as_told(tmp_path, columns, width):
    """$COLUMNS, and 80 where no stream is a terminal; the bar of time by state fills the width."""
    Rank(tmp_path, run="mine", rank=0, world_size=1, total_steps=100).train(20)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"COLUMNS": columns} if columns else {}
    command = [sys.executable, "-m", "goodput", "top", "--once", "--directory", str(tmp_path)]
    command += ["--agent", "http://127.0.0.1:1"]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    bar = max(done.stdout.splitlines(), key=lambda line: line.count("?"))
    assert len(bar) == width, done.stdout


def test_opened_rank_that_ended_offers_no_stack():
    """Neither of this machine nor of another: there is no process to sample."""
    row = RankRow(1, "n0", attempt=1, phase="finished", has_ended=True, step=19)
    shown = "\n".join(line.plain for line in rank_lines(row, 80, Glyphs(False, False)))
    assert "finished, last step 19" in shown and "in finished" not in shown and "press t" not in shown
    going_on = replace(row, phase="forward", has_ended=False)
    shown = "\n".join(line.plain for line in rank_lines(going_on, 80, Glyphs(False, False)))
    assert "in forward, last step 19" in shown and "run goodput top on n0 and press t there" in shown


def test_wrong_calls_and_dead_server(tmp_path, capsys):
    assert main(["top", "--url", "http://127.0.0.1:1", "--directory", str(tmp_path)]) == 2
    assert main(["top", "--url", "http://127.0.0.1:1", "--once"]) == 1
    assert "http://127.0.0.1:1: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer", [{"runs": [{"run": 5}]}, {"runs": 1, "truncated": True}, {"runs": {}, "total": None}, {}]
)
def test_answers_of_another_shape_are_an_error_in_one_line(monkeypatch, capsys, answer):
    monkeypatch.setattr(ApiSource, "_get", lambda *_, **__: answer)
    for words in ([], ["r1"]):
        assert main(["top", "--url", "http://127.0.0.1:1", "--once", *words]) == 1
        text = capsys.readouterr().err
        assert (
            text.startswith("goodput top: http://127.0.0.1:1: unexpected answer (") and text.count("\n") == 1
        )


def test_legend_has_the_largest_states_where_not_all_fit():
    view = run_view(found(), Pace(1.0, [1.0], ""), History(), 0.0)
    states = {"productive": 5.6, "loader": 20.2, "communication": 7.2, "straggler": 3.4, "startup": 60.3}
    shown = [
        body(
            Frame("", 0.0, [], replace(view, answer=[], states={**states, "other": 3.3})),
            View("r1"),
            width,
            Glyphs(False, False),
        )[3]
        for width in (80, 30)
    ]
    assert shown[0].plain == "= productive 5.6 %  L loader 20.2 %  C communication 7.2 %  I startup 60.3 %"
    assert shown[1].plain == "I startup 60.3 %"


def test_run_begins_with_the_answer():
    document = found()
    view = run_view(document, Pace(1.0, [1.0], ""), History(), 0.0)
    lines = [line.plain for line in body(Frame("", 0.0, [], view), View("r1"), 120, Glyphs(False, False))]
    shown = " ".join(lines[2:6]).split()
    assert shown[: len(document["answer"]["lines"][0].split())] == document["answer"]["lines"][0].split()
    assert [word for word in ("why:", "next:") if word in shown] == ["why:", "next:"]


def test_without_rich_the_extra_is_named(tmp_path):
    code = "import sys; sys.modules['rich'] = None; from goodput.cli import main; sys.exit(main(['top']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "goodput-telemetry[top]" in done.stderr) == (1, True), done.stderr


def test_reading_goes_on_after_errors():
    """The last frame stays, the problem is shown, and gone with the next reading that succeeds."""
    frames = [Frame("s", float(n), [], None) for n in range(2)]
    outcomes = [frames[0], SourceError("no answer"), KeyError("live"), frames[1]]
    seen, over = [], threading.Event()

    class Source:
        title = "s"

        def read(self, opened):
            if len(seen) == len(outcomes):
                threading.Event().wait()
            outcome = outcomes[len(seen)]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    def changed():
        seen.append((polling.frame, polling.problem))
        if len(seen) == len(outcomes):
            over.set()

    polling = Polling(Source(), 0.001, changed)
    polling.start()
    assert over.wait(30)
    assert seen[:4] == [
        (frames[0], ""),
        (frames[0], "no answer"),
        (frames[0], "s: KeyError: 'live'"),
        (frames[1], ""),
    ]
