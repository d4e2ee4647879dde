"""Traces without step marks: what lies before the first work and after the last is told apart and never advised on."""

import pytest
from support.trace.trace_maker import kernel, launch, loader, note, op, step, sync, write

from goodput.cli import main
from goodput.trace import analyze

MS = 1000  # microseconds


def busy_device(ahead: int = 0) -> list[dict]:
    """The device computes without a gap from 800 ms to 1800 ms; it is set up before, and waited for afterwards."""
    events = [op(0, 790 * MS, "aten::empty"), note(0, 2000 * MS, "train")]
    for i in range(10):
        events.append(launch(790 * MS + i * 10, 5, i + 1))
        events.append(kernel((800 + 100 * i) * MS + ahead, 100 * MS, correlation=i + 1))
    return [*events, sync(1790 * MS, 210 * MS)]


def only(path) -> dict:
    (device,) = analyze([path])["ranks"][0]["devices"]
    return device


def test_time_around_the_work_is_told_apart(tmp_path):
    document = analyze([write(tmp_path / "t.json", busy_device())])
    (device,) = document["ranks"][0]["devices"]
    assert device["steps_from"] == "whole trace"
    assert device["total"]["states_ns"]["compute"] == device["total"]["wall_ns"] == 1000 * MS * 1000
    assert device["total"]["before_work_ns"] == 800 * MS * 1000
    assert device["total"]["after_work_ns"] == 200 * MS * 1000
    assert document["causes"] == []


def test_text_names_the_time_around_the_work(tmp_path, capsys):
    assert main(["analyze", str(write(tmp_path / "t.json", busy_device()))]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "as fast" not in out
    assert "before the first work 800 ms, after the last 200 ms" in out
    assert "one step, from the first work to the last" in out


def test_text_of_several_devices_sums_the_time_around(tmp_path, capsys):
    events = [*busy_device(), kernel(900 * MS, 100 * MS, device=1)]
    assert main(["analyze", str(write(tmp_path / "t.json", events))]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "before the first work 1.7 s, after the last 1.2 s" in out


def test_processor_without_marks_begins_with_its_first_operator(tmp_path):
    events = [note(0, 2000, "train"), op(800, 500), op(1300, 200)]
    device = only(write(tmp_path / "t.json", events))
    assert device["device"] == "CPU"
    assert (device["total"]["wall_ns"], device["total"]["states_ns"]["compute"]) == (700_000, 700_000)
    assert (device["total"]["before_work_ns"], device["total"]["after_work_ns"]) == (800_000, 500_000)


def test_single_optimizer_step_without_a_loader_begins_with_work(tmp_path):
    """Its begin is not marked; nothing is cut off after the mark that ends it."""
    events = [*busy_device(), note(1900 * MS, 10 * MS, "Optimizer.step#SGD.step")]
    device = only(write(tmp_path / "t.json", events))
    assert device["steps_from"] == "Optimizer.step"
    assert device["steps"][0]["start_ns"] == 800 * MS * 1000
    assert device["total"]["wall_ns"] == 1110 * MS * 1000
    assert (device["total"]["before_work_ns"], device["total"]["after_work_ns"]) == (800 * MS * 1000, 0)


@pytest.mark.parametrize("mark", [step(1, 0, 2000 * MS), loader(0, 700 * MS)])
def test_marked_begin_of_a_step_stays(tmp_path, mark):
    """A step mark or the call of the loader is a begin, however late the first kernel comes."""
    events = [*busy_device(), mark, note(1900 * MS, 10 * MS, "Optimizer.step#SGD.step")]
    device = only(write(tmp_path / "t.json", events))
    assert device["steps"][0]["start_ns"] == 0
    assert (device["total"]["before_work_ns"], device["total"]["after_work_ns"]) == (0, 0)


def test_work_of_no_length_leaves_the_whole_trace(tmp_path):
    device = only(write(tmp_path / "t.json", [op(0, 100), kernel(50, 0)]))
    assert device["total"]["wall_ns"] == 100_000
    assert sum(device["total"]["states_ns"].values()) == 100_000
