"""Windows of a run as sides: by step, by time since the start, by the clock; and the account of each."""

import numpy as np
import pytest
from support.compare.logs import write_log

from goodput.cli import main
from goodput.compare.comparison import compare
from goodput.compare.selection import Selection, SelectionError, Window, parse
from goodput.compare.steps import read


@pytest.fixture
def log(tmp_path):
    """100 steps of 1 s from second 1 on, of which 0.25 s are waiting, then 100 of 2 s with 1 s of waiting."""
    lengths = np.repeat([1.0, 2.0], [100, 100])
    declared = {"gpu_hour_cost": 3.6, "flops_per_step": 1e12, "peak_flops_per_second": 4e12}
    return write_log(tmp_path / "run.jsonl", lengths, lengths**2 / 4, name="r", **declared)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("a.jsonl", Selection("a.jsonl", None, None)),
        ("a#r", Selection("a", "r", None)),
        ("a#r@x", Selection("a", "r@x", None)),
        ("a#r@x@5..", Selection("a", "r@x", Window("step", 5, None, "5.."))),
        ("a@..2000", Selection("a", None, Window("step", None, 2000, "..2000"))),
        ("a@10m..1h30m", Selection("a", None, Window("time since the start", 600 * 10**9, 5400 * 10**9, "10m..1h30m"))),
        ("a@0.5s..", Selection("a", None, Window("time since the start", 5 * 10**8, None, "0.5s.."))),
        ("a@1970-01-02..1970-01-02T00:00:01.5Z", Selection("a", None, Window(
            "moment", 86_400 * 10**9, 86_401_500 * 10**6, "1970-01-02..1970-01-02T00:00:01.5Z"))),
        ("a@1970-01-01T02:00+01:00..", Selection("a", None, Window(
            "moment", 3600 * 10**9, None, "1970-01-01T02:00+01:00.."))),
    ],
)  # fmt: skip
def test_words_name_parts_of_runs(word, expected):
    assert parse(word) == expected


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("a@..", "a window needs a start or an end"),
        ("a@5..2m", "goes from a step to a time since the start"),
        ("a@5..5", "is empty"),
        ("a@9..5", "is empty"),
        ("a@soon..", "'soon' is no step"),
        ("a@-3..", "'-3' is no step"),
        ("a@0000-01-01..", "is no step"),
    ],
)
def test_words_that_name_no_window(word, words):
    with pytest.raises(SelectionError, match=words):
        parse(word)


def test_a_file_of_that_name_is_that_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a@1..2").touch()
    assert parse("a@1..2") == Selection("a@1..2", None, None)


@pytest.mark.parametrize(
    ("word", "steps"),
    [
        ("..30", range(1, 30)),
        ("20..100", range(20, 100)),
        ("150..", range(150, 200)),
        # Step n ends at second n + 2, one second after the start of the run and step 0.
        ("30s..1m", range(29, 59)),
        ("1970-01-01T00:01..1970-01-01T00:01:30", range(58, 88)),
    ],
)
def test_windows_have_their_steps(log, word, steps):
    assert read(*parse(f"{log}@{word}")).numbers.tolist() == list(steps)


def test_two_windows_of_a_run_by_hand(log):
    """A step takes 0.75 s of work in both; 1 s a step and rank, then 2 s."""
    found = compare([read(*parse(f"{log}@..100"))], [read(*parse(f"{log}@100.."))])
    assert (found.step.base_ns, found.step.new_ns) == (10**9, 2 * 10**9)
    by_name = {one.name: (one.base, one.new) for one in found.figures}
    assert by_name["goodput of the steps"] == pytest.approx((0.75, 0.5))
    assert by_name["MFU of the steps"] == pytest.approx((0.25, 0.125))
    # The first window has step 0, of a second, which is no compared step; nothing else is around the steps.
    assert by_name["goodput of the run"] == pytest.approx((0.75, 0.5))
    assert by_name["MFU of the run"] == pytest.approx((0.25, 0.125))
    assert by_name["dollars"] == pytest.approx((2.0, 4.0))
    assert [one.run for one in (*found.base, *found.new)] == ["r @..100", "r @100.."]
    assert [one.first_steps_left_out for one in (*found.base, *found.new)] == [1, 0]


def test_figures_of_the_run_have_an_interval_with_several_runs(tmp_path):
    """Goodputs 0.75 and 0.65 against 0.5 and 0.5, of 50 of 51 s: 0.2 apart, with a standard error of 0.05."""
    runs = [
        read(write_log(tmp_path / f"{n}.jsonl", np.ones(50), loader, name=f"r{n}"))
        for n, loader in enumerate((0.25, 0.35, 0.5, 0.5))
    ]
    figures = {one.name: one for one in compare(runs[:2], runs[2:]).figures}
    one = figures["goodput of the run"]
    assert one.change == pytest.approx(-0.2 * 50 / 51)
    # Student's t with one degree of freedom is 12.706.
    assert (one.low, one.high) == pytest.approx(
        tuple(50 / 51 * (-0.2 + sign * 0.05 * 12.706) for sign in (-1, 1)), abs=1e-4
    )
    single = {one.name: one for one in compare(runs[:1], runs[2:3]).figures}["goodput of the run"]
    assert (single.low, single.is_significant) == (None, False)


def test_a_warm_up_is_not_cut_from_a_later_window(tmp_path):
    lengths = 1 + np.where(np.arange(300) < 20, 2.0, 0) + 0.01 * np.sin(np.arange(300) * 7)
    log = write_log(tmp_path / "slow-start.jsonl", lengths, 0.1)
    found = compare([read(*parse(f"{log}@..150"))], [read(*parse(f"{log}@150.."))])
    assert [one.steps for one in (*found.base, *found.new)] == [130, 150]
    assert found.base[0].warm_up_steps_left_out == 19 and found.new[0].warm_up_steps_left_out == 0


def test_command_with_windows(log, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["compare", f"{log}@..100", f"{log}@100..", "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "base  r @..100: 2 ranks, 99 steps, 1 left out" in text
    assert "goodput of the run       75.0%     50.0%   -25.0\n" in text
    html = page.read_text()
    assert html.count("<svg") == 3 and "r @100.." in html and "<script" not in html
    assert main(["compare", f"{log}@..10", log]) == 1
    assert "9 steps that can be compared in ..10" in capsys.readouterr().err
    assert main(["compare", f"{log}@5m..1h", log]) == 1
    assert main(["compare", f"{log}@1..1", log]) == 2
    assert main(["compare", log, log, "--html", str(tmp_path / "no" / "page.html")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_names_in_the_page_are_text(tmp_path):
    log = write_log(tmp_path / "x.jsonl", np.ones(40), name="<b>&\x1b")
    assert main(["compare", log, log, "--html", str(tmp_path / "page.html")]) == 0
    html = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;&amp;?" in html and "<b>" not in html and "\x1b" not in html
