"""Traces with broken events or without their end: what can be read is analyzed, what is missing is told, the status is 1."""

import gzip
import json
import random

import pytest
from support.trace.trace_maker import dumps, kernel, launch, loader, op, step, write

from goodput.cli import main
from goodput.trace import TraceError, analyze
from goodput.trace import stream as streams

BROKEN = "BROKEN"


def steps(count: int = 20) -> list[dict]:
    """Steps of 100 us: 20 in the loader, 10 in an operator, 70 of a kernel."""
    events = []
    for i in range(count):
        at = 100 * i
        events += [step(i, at, 100), loader(at, 20), op(at + 20, 10)]
        events += [launch(at + 29, 1, i + 1), kernel(at + 30, 70, correlation=i + 1)]
    return events


def written(path, events: list[dict], given: bytes, packed: bool = False):
    """A trace as Kineto writes it, in which the text of one event named BROKEN is another one."""
    place = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}
    made = [one for one in events if one["name"] != BROKEN]
    lines = [b"@" if one["name"] == BROKEN else dumps(one).encode() for one in events]
    text = (
        json.dumps({"schemaVersion": 1, **place}).encode()[:-1] + b', "traceEvents": [\n' + b",\n".join(lines)
    )
    text = text.replace(b"@", given, 1) + b'\n], "traceName": "t.json", "displayTimeUnit": "ms"}'
    path.write_bytes(gzip.compress(text) if packed else text)
    return text, analyze([write(path.parent / "whole.json", made, rank=3)])


def with_broken(at: int, events: list[dict]) -> list[dict]:
    return [*events[:at], op(0, 1, BROKEN), *events[at:]]


BEGIN = b'{"ph": "X", "cat": "cpu_op", "name": '
END = b', "pid": 4037, "tid": 1, "ts": 5, "dur": 1, "args": {}}'
BROKEN_EVENTS = [
    pytest.param(BEGIN + b'"say "hi" to it"' + END, id="quotes in a name"),
    pytest.param(BEGIN + rb'"C:\path\x"' + END, id="backslashes in a name"),
    pytest.param(BEGIN + b'"never closed' + END, id="name without an end"),
    pytest.param(BEGIN + b"aten::mm" + END, id="name without quotes"),
    pytest.param(BEGIN + b'"' + END, id="quote alone"),
    pytest.param(BEGIN + b'"a", "ts": ' + END, id="field without a value"),
    pytest.param(BEGIN + b'"a", "dur": 1.2.3' + END, id="number with two points"),
    pytest.param(BEGIN + b'"a", "x": 0x1F' + END, id="hexadecimal number"),
    pytest.param(BEGIN + b'"a", "x": ' + b"9" * 5000 + END, id="thousands of digits"),
    pytest.param(BEGIN + b'"a", "x": ' + b"[" * 5000 + END, id="nested too deep"),
    pytest.param(BEGIN + b'"a", "x": [{"name": 1}, {"name": 2} 3]' + END, id="broken list of objects"),
    pytest.param(BEGIN + b'"a"', id="event without an end"),
    pytest.param(b"", id="nothing between two commas"),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("given", BROKEN_EVENTS)
def test_broken_event_loses_nothing_else(tmp_path, given, packed):
    path, events = tmp_path / "t.json", steps()
    at = len(events) // 2
    text, want = written(path, with_broken(at, events), given, packed)
    found = analyze([path])
    (rank,), (loss,) = found["ranks"], found["errors"]
    assert rank["rank"] == 3 and not rank["cut_off"]
    assert loss.startswith(f"{path}: byte ") and loss.endswith("; this event is left out")
    place = int(loss.split("byte ")[1].split()[0])
    assert 0 <= place - text.index(given or b",\n,") <= len(given) + 200
    (problem,) = [one for one in rank["problems"] if "broken" in one["what"]]
    assert (problem["count"], problem["first_event"]) == (1, at + 1)
    assert found["total"]["states_ns"]["compute"] == want["total"]["states_ns"]["compute"]
    assert rank["used"] == len(events)


def test_well_bounded_broken_event_is_the_only_loss(tmp_path):
    path, events = tmp_path / "t.json", steps()
    _, want = written(path, with_broken(13, events), BEGIN + b'"say "hi" to it"' + END)
    found = analyze([path])
    assert (found["ranks"][0]["devices"], found["causes"]) == (want["ranks"][0]["devices"], want["causes"])
    assert found["ranks"][0]["used"] == len(events)


@pytest.mark.parametrize("at", [0, -1])
def test_first_or_last_event_may_be_broken(tmp_path, at):
    path, events = tmp_path / "t.json", steps()
    place = at % (len(events) + 1)
    _, want = written(path, with_broken(place, events), BEGIN + b'"a" b' + END)
    found = analyze([path])
    assert found["ranks"][0]["devices"] == want["ranks"][0]["devices"] and len(found["errors"]) == 1


def test_many_broken_events_are_counted(tmp_path):
    path = tmp_path / "t.json"
    good, bad = dumps(kernel(0, 10)).encode(), BEGIN + b'"a"b"' + END
    path.write_bytes(b"[" + b",".join([good, *[bad] * 3000, good, bad, good]) + b"]")
    found = analyze([path])
    (problem,) = found["ranks"][0]["problems"]
    assert (problem["count"], problem["first_event"], found["ranks"][0]["used"]) == (3001, 2, 3)
    assert len(found["errors"]) == 1


def test_missing_comma_between_events_is_told(tmp_path):
    path = tmp_path / "t.json"
    good = [dumps(one).encode() for one in steps(3)]
    path.write_bytes(b"[" + b",".join([*good[:5], good[5] + b" " + good[6], *good[7:]]) + b"]")
    found = analyze([path])
    assert found["errors"][0].endswith('want "," or "]" after an event')
    assert found["ranks"][0]["used"] == len(good)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_chunks_do_not_matter_to_what_is_lost(tmp_path, monkeypatch, size):
    path = tmp_path / "t.json"
    written(path, with_broken(13, steps(5)), BEGIN + b'"say "hi" to it"' + END)
    want = analyze([path])
    monkeypatch.setattr(streams, "CHUNK_BYTES", size)
    assert analyze([path]) == want


def test_command_prints_the_place_and_ends_with_1(tmp_path, capsys):
    path, events = tmp_path / "t.json", steps()
    written(path, with_broken(13, events), BEGIN + b'"say "hi" to it"' + END)
    assert main(["analyze", str(path)]) == 1
    printed = capsys.readouterr()
    errors = " ".join(printed.err.split())
    assert "broken JSON: Expecting ',' delimiter; this event is left out" in errors
    assert "1 event left out: whose JSON is broken (the first is number 14)" in errors
    assert "largest cause: loader" in printed.out
    assert main(["analyze", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["errors"] == document["ranks"][0]["losses"] and document["cause"]["state"] == "loader"


def test_broken_field_before_the_events_is_left_out(tmp_path):
    path = tmp_path / "t.json"
    text = dumps({"traceEvents": steps(), "displayTimeUnit": "ms"})
    path.write_text('{"schemaVersion": 1, "command": "C:\\train.py "now"", "x": 1, ' + text[1:])
    found = analyze([path])
    assert found["errors"][0].endswith("; what follows it up to the events is left out")
    assert found["causes"] and found["ranks"][0]["used"] == 100


@pytest.mark.parametrize("end", [rb', "traceName": "C:\trace\x.json"}', b' "x": 1}', b"} {}", b"}\0\0\0"])
def test_broken_text_after_the_events_loses_none(tmp_path, end):
    """PyTorch on Windows has written the path of the file without escapes."""
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents": ' + dumps(steps()).encode() + end)
    found = analyze([path])
    assert found["errors"][0].endswith("; analyzed are the 100 events before it")
    assert not found["ranks"][0]["cut_off"] and found["causes"]


@pytest.mark.parametrize("packed", [False, True])
def test_file_that_is_cut_off_names_no_cause(tmp_path, capsys, packed):
    """Kernels come last in a file, so any step may lack some: what is there is shown, and nothing is advised."""
    random.seed(5)
    path, events = tmp_path / "t.json", steps(400)
    for one in events:
        one["args"]["x"] = random.randrange(1 << 60)  # so that it doesn't pack to nothing
    text, _ = written(path, events, b"", packed)
    if packed:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(text[: len(text) // 2])
    assert main(["analyze", str(path)]) == 1
    printed = capsys.readouterr()
    errors, out = " ".join(printed.err.split()), " ".join(printed.out.split())
    assert ("the gzip file is cut off" if packed else "the file ends in the middle") in errors
    (rank,) = analyze([path])["ranks"]
    assert rank["cut_off"] and 900 < rank["events"] < 1100
    assert f"analyzed are the {rank['events']} events before it" in errors
    assert "no cause: a file is cut off" in out and "as fast" not in out


def test_file_cut_off_before_device_work_is_refused(tmp_path):
    """Else it would be shown as the trace of a CPU."""
    path = tmp_path / "t.json"
    events = [one for one in steps() if one["cat"] != "kernel"]
    path.write_text(dumps({"traceEvents": events})[:-20])
    with pytest.raises(TraceError, match="none of which is the work of a device"):
        analyze([path])
    host = [one for one in events if one["cat"] != "cuda_runtime"]
    path.write_text(dumps({"traceEvents": host})[:-20])
    assert analyze([path])["ranks"][0]["cut_off"]
    path.write_text(dumps({"deviceProperties": [{"id": 0, "name": "A100"}], "traceEvents": host})[:-20])
    with pytest.raises(TraceError, match="none of which is the work of a device"):
        analyze([path])


def test_other_files_are_analyzed_beside_a_broken_one(tmp_path, capsys):
    whole, cut = write(tmp_path / "0.json", steps(), rank=0), write(tmp_path / "1.json", steps(), rank=1)
    cut.write_bytes(cut.read_bytes()[:-300])
    (tmp_path / "2.json").write_bytes(b"")
    assert main(["analyze", str(whole), str(cut), str(tmp_path / "2.json"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert [rank["cut_off"] for rank in document["ranks"]] == [False, True]
    assert len(document["errors"]) == 2 and "the file is empty" in document["errors"][0]
