"""Broken, truncated and empty files name the place of the error; invalid events are counted and skipped."""

import gzip
import json
import os
import pickle
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.trace.trace_maker import Number, dumps, event, kernel, launch, op, step, write

from goodput.trace import TraceError, analyze
from goodput.trace import stream as streams

GOOD = [step(1, 0, 100), launch(0, 1, 1), kernel(10, 50, correlation=1), op(0, 10)]


def error_of(path) -> str:
    with pytest.raises(TraceError) as caught:
        analyze([path])
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def loss_of(path) -> str:
    """What the analysis says of a file of which it uses a part."""
    text = analyze([path])["errors"][-1]
    assert text.startswith(f"{path}: ")
    return text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"  \n ", "the file is empty"),
        (b"hello", "byte 0 (line 1, column 1): not a trace"),
        (b"\x00\x01\x02\xff", "byte 0 (line 1, column 1): not a trace"),
        (b"{}", "no `traceEvents`"),
        (b'{"a": 1}', "no `traceEvents`"),
        (b'{"traceEvents": 3}', "byte 16 (line 1, column 17): `traceEvents` is no list"),
        (b'{"traceEvents": []}', "no usable event"),
        (b"[]", "no usable event"),
        (b'{"traceEvents": [', "byte 17 (line 1, column 18): the file ends in the middle"),
        (b'{"traceEvents": [{}', "byte 19 (line 1, column 20): the file ends in the middle"),
        (b'{"traceEvents": [{},\n {"name": "a', "byte 33 (line 2, column 13): the file ends in the middle"),
        (b'{"traceEvents": [] ', "byte 19 (line 1, column 20): the file ends in the middle"),
        (b'{"traceEvents": []} x', "byte 20 (line 1, column 21): there is more after the end"),
        (b'{"traceEvents": [{} {}]}', 'byte 20 (line 1, column 21): want "," or "]"'),
        (b'{"a" 1}', 'byte 5 (line 1, column 6): want ":"'),
        (b'{"a": 1 "b": 2}', 'byte 8 (line 1, column 9): want "," or "}"'),
        (b"{1: 2}", 'byte 1 (line 1, column 2): want "name"'),
        (b"[" * 100_000, "nested too deep"),
        (b'{"traceEvents": [{"ts": ' + b"9" * 5000 + b"}]}", "thousands of digits"),
    ],
)
def test_file_that_is_no_trace_names_the_place(tmp_path, content, words):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert words in error_of(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "start_ts": 3, "nodes": [{"id": 1}', "execution trace"),
        (b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "JSON output of rocprof"),
        (
            b'{"traceEvents": [{}, {"ph": "X", "name": "k", "ts": "1", "dur": "2", "args": {"BeginNs": "1"}}]}',
            "JSON trace of rocprof",
        ),
        (b'"Index","KernelName","gpu-id","BeginNs","EndNs"\n0,k,0,1,2\n', "CSV output of rocprof"),
        (b'"Kind","Agent_Id","Kernel_Name","Start_Timestamp"\n', "CSV output of rocprof"),
        (b"SQLite format 3\0\x10\0", "SQLite database"),
    ],
)
def test_file_of_another_tool_is_named(tmp_path, content, words):
    path = tmp_path / "other"
    path.write_bytes(content)
    text = error_of(path)
    assert words in text and "torch.profiler" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            pickle.dumps({"version": "2.10", "pg_config": {}, "entries": []}, 2),
            "a dump of PyTorch's Flight Recorder",
        ),
        (b'{"version": "2.10", "pg_config": {}, "entries": []}', "goodput analyze --flight DIR"),
        (pickle.dumps([1], 4), "perhaps a dump of PyTorch's Flight Recorder"),
        (b"GOODPUT\0\4\0\0\0\0\0\0\0", "goodput report --directory DIR"),
    ],
)
def test_file_for_another_option_names_it(tmp_path, content, words):
    path = tmp_path / "other"
    path.write_bytes(content)
    assert words in error_of(path)


@pytest.mark.parametrize("packed", [False, True])
def test_broken_json_is_located_to_the_byte(tmp_path, packed):
    """Several chunks in; with letters beyond ASCII before it, so that characters are not bytes."""
    lines = [
        json.dumps(kernel(10 * i, 5, name=f"Kernel «{i}» 日本"), ensure_ascii=False) for i in range(20_000)
    ]
    lines[17_345] = lines[17_345].replace('"dur": 5', '"dur": 5 5')
    data = ('{"traceEvents": [\n' + ",\n".join(lines) + "]}").encode()
    assert data.index(b"5 5") > 2 * streams.CHUNK_BYTES
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    text = loss_of(path)
    column = lines[17_345].index("5 5") + 3
    assert (
        f"byte {data.index(b'5 5') + 2} (line 17347, column {column}): broken JSON: Expecting ',' delimiter"
        in text
    )


def test_truncated_gzip(tmp_path):
    random.seed(1)
    data = gzip.compress(
        dumps({"traceEvents": [kernel(10 * i, random.randrange(9)) for i in range(2000)]}).encode()
    )
    path = tmp_path / "t.json.gz"
    path.write_bytes(data[: len(data) // 2])
    text = loss_of(path)
    assert "the gzip file is cut off" in text and "byte " in text and "line " in text
    path.write_bytes(data[:4000] + b"\xff\xff\xff\xff\xff\xff" + data[4006:])
    assert "broken gzip" in loss_of(path)
    path.write_bytes(data[:-8] + b"\0" * 8)
    assert "broken gzip" in loss_of(path)
    path.write_bytes(b"\x1f\x8b")
    assert "gzip" in error_of(path)


def test_file_that_cannot_be_opened(tmp_path):
    assert "No such file" in error_of(tmp_path / "none.json")
    assert "directory" in error_of(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # Nobody writes to it.
    assert error_of(tmp_path / "pipe") == "not a regular file"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dur": -5}, "with a negative `dur`"),
        ({"dur": Number("-0.5")}, "with a negative `dur`"),
        ({"dur": Number("NaN")}, "whose `dur` is no number"),
        ({"dur": Number("nan")}, "whose `dur` is no number"),
        ({"dur": Number("-inf")}, "whose `dur` is no number"),
        ({"dur": Number("Infinity")}, "whose `dur` is no number"),
        ({"dur": 10**30}, "longer than a day"),
        ({"dur": Number("1e300")}, "whose `dur` is no number"),
        ({"dur": 18446744073709551615}, "longer than a day"),
        ({"dur": None}, "without `dur`"),
        ({"dur": [1]}, "whose `dur` is no number"),
        ({"dur": True}, "whose `dur` is no number"),
        ({"ts": None}, "without `ts`"),
        ({"ts": {}}, "whose `ts` is no number"),
        ({"ts": 10**25}, "further than 146 years from 0"),
        ({"ts": Number("1e999999999")}, "whose `ts` is no number"),
        ({"cat": None}, "without a category"),
        ({"cat": None, "pid": [1], "tid": {}}, "without a category"),
        ({"cat": "surprise"}, "of an unknown category 'surprise'"),
        ({"cat": ["kernel"]}, "of an unknown category"),
        ({"ph": None}, "without `ph`"),
        ({"ph": 5}, "with a `ph` that no trace has"),
        ({"ph": ["X"]}, "with a `ph` that no trace has"),
        ({"ph": "x"}, "with a `ph` that no trace has"),
        ({"ph": "B"}, "begin and end in two events"),
    ],
)
def test_invalid_event_is_counted_and_skipped(tmp_path, change, words):
    broken = {**kernel(60, 10), **change}
    found = analyze([write(tmp_path / "t.json", [GOOD[0], broken, *GOOD[1:]])])["ranks"][0]
    (problem,) = found["problems"]
    assert words in problem["what"] and problem["count"] == 1 and problem["first_event"] == 2
    assert found["devices"] == analyze([write(tmp_path / "t.json", GOOD)])["ranks"][0]["devices"]
    assert (found["events"], found["used"]) == (5, 4)


def test_optional_fields_may_be_missing(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "ts": 0, "dur": 10},
        {"ph": "X", "cat": "kernel", "ts": 10, "dur": 10, "name": None, "args": None, "pid": [1], "tid": {}},
        {
            "ph": "X",
            "cat": "kernel",
            "ts": 20,
            "dur": 10,
            "name": 7,
            "args": {"device": "x", "correlation": "y"},
        },
        {"ph": "X", "cat": "cpu_op", "ts": 0, "dur": 10, "name": 7, "args": 3, "pid": 1.5, "tid": None},
    ]
    found = analyze([write(tmp_path / "t.json", events)])["ranks"][0]
    # A number in place of a name is told, and the time of its event counts.
    assert found["problems"] == [{"what": "whose `name` is no text", "count": 2, "first_event": 3}]
    assert found["used"] == 4
    for device in found["devices"]:
        assert sum(device["total"]["states_ns"].values()) == device["total"]["wall_ns"]
    assert sorted(device["total"]["wall_ns"] for device in found["devices"]) == [10_000, 30_000]
    assert sum(device["total"]["states_ns"]["compute"] for device in found["devices"]) == 30_000


def test_bare_list_with_non_objects_and_trailing_comma(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("[" + dumps(GOOD[2]) + ', 3, null, "x", [],]')
    found = analyze([path])["ranks"][0]
    assert found["problems"] == [{"what": "not an object", "count": 4, "first_event": 2}]
    assert found["devices"][0]["total"]["wall_ns"] == 50_000


def test_infinite_and_nan_bandwidths_are_skipped(tmp_path):
    """Kineto wrote these; in a name they are letters like any other."""
    events = [kernel(10 * i, 5, name='x: inf, "nan"') for i in range(5000)]
    for i, one in enumerate(events):
        one["args"]["memory bandwidth (GB/s)"] = Number(("inf", "-nan", "nan", "-inf", "Infinity")[i % 5])
    found = analyze([write(tmp_path / "t.json", events)])["ranks"][0]
    assert found["used"] == 5000 and not found["problems"]
    assert found["devices"][0]["top"] == [
        {"name": 'x: inf, "nan"', "kind": "compute", "count": 5000, "ns": 25_000_000}
    ]


def test_order_of_events_and_fields_does_not_matter(tmp_path):
    events = [*GOOD, step(2, 100, 50), *[kernel(100 + 3 * i, 2, name=f"k{i}") for i in range(15)]]
    want = analyze([write(tmp_path / "t.json", events)])
    random.seed(3)
    for _ in range(5):
        random.shuffle(events)
        turned = [dict(reversed(list(one.items()))) for one in events]
        path = tmp_path / "t.json"
        path.write_text(
            dumps(
                {
                    "traceEvents": turned,
                    "displayTimeUnit": "ms",
                    "distributedInfo": {"rank": 0, "world_size": 8},
                }
            )
        )
        assert analyze([path]) == want


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_chunk_boundaries_do_not_matter(tmp_path, monkeypatch, size):
    path = write(
        tmp_path / "t.json",
        [*GOOD, kernel(70, Number("1.234"), name='é日\\"\n\u2028')],
        about=[1.5, {"x": None}],
        baseTimeNanoseconds=1735632360000000001,
    )
    want = analyze([path])
    assert want["ranks"][0]["base_time_ns"] == 1735632360000000001
    monkeypatch.setattr(streams, "CHUNK_BYTES", size)
    assert analyze([path]) == want


def test_byte_order_mark_and_invalid_utf8(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(b"\xef\xbb\xbf" + dumps({"traceEvents": GOOD}).encode().replace(b"gemm", b"ge\xff\xfem"))
    found = analyze([path])
    json.dumps(found).encode()
    assert found["total"]["states_ns"]["compute"] == 50_000


def test_threads_devices_and_names_are_bounded(tmp_path, monkeypatch):
    from goodput.trace import columns

    for name, most in (
        ("THREADS_MAX", 3),
        ("DEVICES_MAX", 2),
        ("NAMES_MAX", 4),
        ("MARKS_MAX", 2),
        ("REASONS_MAX", 5),
    ):
        monkeypatch.setattr(columns, name, most)
    events = [op(i, 1, tid=i) for i in range(10)]
    events += [kernel(10 * i, 5, name=f"k{i}", device=i) for i in range(9)]
    events += [kernel(20 + 10 * i, 5, name=f"n{i}") for i in range(9)]
    events += [step(i, 100 * i, 100, tid=1) for i in range(5)]
    events += [event(f"odd {i}", "x", 0, 1) for i in range(9)]
    found = analyze([write(tmp_path / "t.json", events)])["ranks"][0]
    problems = {one["what"]: one["count"] for one in found["problems"]}
    assert problems["of more than 3 threads"] == 7
    assert problems["of more than 2 devices"] == 7
    assert problems["step marks beyond the first 2"] == 3
    assert problems["for further reasons"] == 7
    assert any(row["name"] == columns.OTHER_NAMES for one in found["devices"] for row in one["top"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_file_raises_trace_error_or_nothing(tmp_path_factory, data):
    """Cut, overwrite or double bytes anywhere: a document that closes, or TraceError with a place."""
    text = bytearray(dumps({"traceEvents": GOOD, "distributedInfo": {"rank": 1}}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(bytes(text))
    try:
        found = analyze([path])
    except TraceError as error:
        assert str(error).startswith(str(path))
        return
    for device in found["ranks"][0]["devices"]:
        for row in device["steps"]:
            assert sum(row["states_ns"].values()) == row["wall_ns"]
