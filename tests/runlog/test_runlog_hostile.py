"""Invalid logs: the right account, or a clear error with its line; states always sum to wall time."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict
from support.account.near import differing
from support.account.run_logs import BASE, HEAD, step

from goodput.account import document
from goodput.runlog import LogError, log_file, replay
from goodput.runlog.lines import KnownLine, LineError, parse, unknown_fields


def found_in(path: Path, raw: bytes):
    path.write_bytes(raw)
    return replay(str(path))


def closes(account) -> bool:
    return all(sum(rank.states) == rank.wall_ns and min(rank.states) >= 0 for rank in account.ranks)


# What is appended to BASE (from line 8 on), the message about it, and how many steps are kept.
BAD_LINES = {
    "no such kind": (b'{"kind":"lunch","time":6}\n', "", 5),
    "no such kind with other fields": (b'{"kind":"lunch","time":6,"rank":"first"}\n', "", 5),
    "an attempt of no rank": (
        b'{"kind":"attempt","time":6,"rank":"0","attempt":2}\n',
        'line 8: `rank` is "0", want a whole number',
        5,
    ),
    "a wrong size of the world": (
        b'{"kind":"attempt","time":6,"attempt":2,"world_size":0}\n' + step(7, 5),
        "line 8: `world_size` is 0, want a whole number >= 1; it is left out",
        6,
    ),
    "not an object": (b"[1,2]\n", "line 8: it is [1,2], want an object", 5),
    "a number": (b"7\n", "line 8: it is 7, want an object", 5),
    "no kind": (b"{}\n", "line 8: Object missing required field `kind`", 5),
    "a wrong type": (
        step(6, 5).replace(b'"step":5', b'"step":"5"'),
        'line 8: `step` is "5", want a whole number',
        5,
    ),
    "a boolean that is text": (
        b'{"kind":"checkpoint","time":6,"step":3,"committed":"yes"}\n',
        'line 8: `committed` is "yes", want true or false',
        5,
    ),
    "not utf-8": (b'{"kind":"beat","time":6,"host":"\xe9t\xe9"}\n', "line 8: 'utf-8' codec", 5),
    "half a pair": (b'{"kind":"beat","time":6,"host":"\\ud800"}\n', "line 8: ", 5),
    "half a pair in a step": (
        step(6, 5, ',"phases":{"a\\udfff":0.5},"dtype":"\\ud83d\\ude00\\ud83d"'),
        "line 8: half of a surrogate pair is no text; it is replaced",
        6,
    ),
    "half a pair after a number out of range": (
        step(6, 5, ',"samples":1e400,"text":"\\\\\\ud800"'),
        "line 8: `samples` is 1e400, Number out of range; it is left out",
        6,
    ),
    "half a pair beside 5 000 digits": (
        step(6, 5, ',"more":%s,"text":"\\ud800"' % ("9" * 5000)),
        "line 8: half of a surrogate pair",
        6,
    ),
    "not utf-8 in a step": (
        step(6, 5, ',"text":"?"').replace(b"?", b"\xff"),
        "line 8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte; what is no",
        6,
    ),
    "a control character in a text": (step(6, 5, ',"text":"a\0b"'), "line 8: JSON is malformed: inval", 6),
    "zero bytes": (b"\0\0\0\0\n" + step(6, 5), "line 8: JSON is malformed", 6),
    "2 MB in a line": (b"x" * 2_000_000 + b"\n" + step(6, 5), "line 8: ", 6),
    "2 MB of JSON": (
        b'{"kind":"beat","text":"' + b"x" * 2_000_000 + b'"}\n',
        "line 8: the line is longer",
        5,
    ),
    "2 MB and no end": (b'{"text":"' + b"x" * 2_000_000, "line 8: the line is longer", 5),
    "deep": (
        b'{"kind":"beat","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
        "line 8: maximum recursion",
        5,
    ),
    "cut off": (step(6, 5)[:-20], "line 8: the line is cut off", 5),
    "no time": (b'{"kind":"beat"}\n', "line 8: `time` is missing", 5),
    "no such time": (b'{"kind":"beat","time":1e400}\n', "line 8: `time` is 1e400: further", 5),
    "a time too long to write": (b'{"kind":"beat","time":1e999999999}\n', "line 8: `time` is 1e99", 5),
    "a time of 10 000 digits": (
        b'{"kind":"beat","time":' + b"9" * 10_000 + b"}\n",
        "line 8: `time` is 9999",
        5,
    ),
    "a time that is NaN": (b'{"kind":"beat","time":NaN}\n', "line 8: `time` is missing", 5),
    "a time that is text": (b'{"kind":"beat","time":"6"}\n', "line 8: `time` is", 5),
    "a length too long": (
        step(6, 5).replace(b'"seconds":1', b'"seconds":1e400'),
        "line 8: `seconds` is 1e400, Number out of range",
        5,
    ),
    "a negative length": (
        step(6, 5).replace(b'"seconds":1', b'"seconds":-1'),
        "line 8: `seconds` is -1, want a number >= 0",
        5,
    ),
    "rank 10^30": (b'{"kind":"beat","time":6,"rank":1%s}\n' % (b"0" * 30), "line 8: `rank` is 1000", 5),
    "rank 16 million": (b'{"kind":"beat","time":6,"rank":16000000}\n', "line 8: `rank` is 16000000, want", 5),
    "a step of that rank": (step(6, 5).replace(b'"rank":0', b'"rank":16000000'), "line 8: ", 5),
    "attempt -1": (b'{"kind":"beat","time":6,"attempt":-1}\n', "line 8: `attempt` is -1, want", 5),
    "a negative phase": (step(6, 5, ',"phases":{"forward":-0.5}'), "line 8: its phase 'forward' is neg", 6),
    "a phase of 10^300 s": (step(6, 5, ',"phases":{"forward":1e300}'), "line 8: its phases take", 6),
    "phases beyond the step": (step(6, 5, ',"phases":{"a":9,"b":9}'), "line 8: its phases take 18.0", 6),
    "a jump of the clock": (step(10**8, 5) + step(7, 6), "line 8: its time jumps ahead by 99999995 s", 6),
    "a jump that stays": (step(10**8, 5) + step(10**8 + 1, 6), "line 8: its time is 1157.4 days after", 7),
    "a clock set back": (step(5000, 5) + step(5001, 6) + step(7, 7), "line 10: its time is 4994 s behind", 7),
    "steps over each other": (step(5.5, 5), "line 8: it overlaps the step before by 0.500 s", 6),
    "an attempt begun twice": (
        b'{"kind":"attempt","time":2.5,"rank":0,"attempt":1}\n',
        "line 8: attempt 1 of rank 0 already began",
        5,
    ),
    "attempts over each other": (
        b'{"kind":"attempt","time":2,"rank":0,"attempt":2,"resume_step":4}\n',
        "line 8: attempt 2 of rank 0 begins 3.000 s before the last line of attempt 1",
        5,
    ),
    "an end too early": (
        b'{"kind":"end","time":3,"rank":0,"attempt":1}\n',
        "line 8: the attempt ends 2.000 s before",
        5,
    ),
    "a run's end too early": (b'{"kind":"run_end","time":3}\n', "line 8: the run ends 2.000 s before", 5),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_line_is_reported_and_the_rest_used(tmp_path, name):
    from goodput.cli.run_logs.output import problem_lines

    raw, message, kept = BAD_LINES[name]
    (found,) = found_in(tmp_path / "log", BASE + raw)
    assert sum(rank.kept_steps for rank in found.account.ranks) == kept
    assert closes(found.account)
    assert message in "\n".join(problem_lines(found.problems)), found.problems.listed
    if not message:
        assert found.problems.ignored == {"kind 'lunch'": 1}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"a\\ud800b", "a\ufffdb"),
        (b"\\ude00\\ud83d", "\ufffd\ufffd"),
        (b"\\ud83d\\ude00\\ud83d", "\U0001f600\ufffd"),
        (b"\\\\ud800\\ud800", "\\ud800\ufffd"),
        (b"a\0b", "a?b"),
        (b"a\\u0000b", "a?b"),
        (b"a\xffb", "a\ufffdb"),
    ],
)
def test_only_what_is_no_text_is_replaced(written, read):
    line = parse(b'{"kind":"beat","time":6.5,"rank":3,"phase":"forward","host":"%s"}' % written)
    assert (line.time_ns, line.rank, line.phase, line.host) == (6_500_000_000, 3, "forward", read)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xef\xbb\xbf" + BASE,
        BASE.replace(b"\n", b"\r\n"),
        BASE.replace(b"\n", b"\n\n  \n\t\r\n"),
        BASE[:-1],
        gzip.compress(BASE),
        gzip.compress(BASE[:200]) + gzip.compress(BASE[200:]),
    ],
    ids=["byte order mark", "crlf", "blank lines", "no last newline", "gzip", "gzip in two parts"],
)
def test_harmless_formats_are_accepted(tmp_path, raw):
    (found,) = found_in(tmp_path / "log", raw)
    assert found.problems.listed == [] and found.problems.broken == ""
    assert found.account.ranks[0].kept_steps == 5
    assert found.account.end_ns == 5 * 10**9


def test_missing_run_line_is_reported(tmp_path):
    (found,) = found_in(tmp_path / "log", BASE.split(b"\n", 1)[1])
    assert found.account.run == "run" and found.account.ranks[0].kept_steps == 5
    assert found.problems.listed[0][0] == 1 and "no run line" in found.problems.listed[0][1]


def test_truncated_gzip_gives_its_readable_part(tmp_path):
    lines = HEAD + b"".join(step(i + 1, i) for i in range(20_000))
    (whole,) = found_in(tmp_path / "log", lines)
    packed = gzip.compress(lines)
    (found,) = found_in(tmp_path / "log", packed[: len(packed) // 2])
    kept = found.account.ranks[0].kept_steps
    assert 0.2 * 20_000 < kept < 20_000 == whole.account.ranks[0].kept_steps
    assert "the file cannot be read after line" in found.problems.broken and closes(found.account)
    assert f"after line {found.problems.lines}:" in found.problems.broken
    (found,) = found_in(tmp_path / "log", packed + b"and more")
    assert found.account.ranks[0].kept_steps == 20_000 and found.problems.broken
    damaged = packed[:5000] + bytes([packed[5000] ^ 255]) + packed[5001:]
    (found,) = found_in(tmp_path / "log", damaged)
    assert found.problems.broken and closes(found.account)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "in 0 lines"),
        (b"\n\n", "in 2 lines"),
        (b'{"kind":"run","time":0}\n', "in 1 lines"),
        (b"\x1f\x8b", "cannot be read after"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 90, "compressed with zstd; unpack it first"),
        (b"\xfd7zXZ\0" + b"x" * 90, "compressed with xz; unpack it first"),
        (b"\0" * 5000, "line 1: JSON is malformed"),
        (b"hello\nworld\n", "line 1: JSON is malformed"),
    ],
)
def test_file_without_attempts_is_an_error(tmp_path, raw, message):
    with pytest.raises(LogError, match=message):
        found_in(tmp_path / "log", raw)


def test_unreadable_file_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(LogError, match="directory"):
        replay(str(tmp_path))
    with pytest.raises(LogError, match="No such file"):
        replay(str(tmp_path / "none"))

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(LogError, match="Permission denied"):
        replay(str(tmp_path / "log"))


def test_pipe_is_read_like_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(BASE,))
    writer.start()
    (found,) = replay(str(pipe))
    writer.join()
    assert found.account.ranks[0].kept_steps == 5


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom"])
def test_device_without_end_is_refused(path):
    with pytest.raises(LogError, match=f"{path}: more than .* bytes: a device, not a log"):
        replay(path)


def test_stream_is_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "STREAM_BYTES_MAX", 10_000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write():
        with suppress(BrokenPipeError), open(pipe, "wb", buffering=0) as file:
            while True:
                file.write(b'{"kind":"beat","time":1}\n' * 100)

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(LogError, match="pipe: more than 10000 bytes: if it ends, write it to a file"):
        replay(str(pipe))
    writer.join(60)
    assert not writer.is_alive()


@pytest.mark.parametrize("has_writer", [False, True])
def test_silent_pipe_is_not_waited_for_without_end(tmp_path, monkeypatch, has_writer):
    monkeypatch.setattr(log_file, "SILENCE_SECONDS_MAX", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR) if has_writer else None
    if writer is not None:
        os.write(writer, BASE)
    with pytest.raises(LogError, match=r"pipe: nothing to read for 0\.05 s"):
        replay(str(pipe))
    if writer is not None:
        os.close(writer)


def test_several_runs_give_several_accounts(tmp_path):
    runs = [
        BASE.replace(b'"kind"', b'"run":"%s","kind"' % name).replace(b'"run":"r1"', b'"x":0')
        for name in (b"b", b"a")
    ]
    mixed = b"".join(
        x + b"\n" for pair in zip(*(run.splitlines() for run in runs), strict=True) for x in pair
    )
    one, two = found_in(tmp_path / "log", mixed)
    assert (one.account.run, two.account.run) == ("b", "a")
    assert one.account.ranks == two.account.ranks and one.account.ranks[0].kept_steps == 5


def test_missing_attempt_line_keeps_the_devices(tmp_path):
    lines = [
        b'{"kind":"attempt","time":0,"rank":0,"attempt":1,"devices":8}',
        b'{"kind":"step","time":2,"rank":0,"attempt":1,"step":0,"seconds":1}',
        b'{"kind":"step","time":5,"rank":0,"attempt":2,"step":1,"seconds":1}',
    ]
    (found,) = found_in(tmp_path / "log", b"\n".join(lines) + b"\n")
    assert found.account.wall_gpu_ns() == 8 * 5 * 10**9


def test_submit_time_zero_is_valid(tmp_path):
    lines = [
        b'{"kind":"run","time":3,"submit_time":0}',
        b'{"kind":"attempt","time":3,"rank":0,"attempt":1}',
        b'{"kind":"end","time":5,"rank":0,"attempt":1,"reason":"failed"}',
        b'{"kind":"attempt","time":9,"rank":0,"attempt":2}',
        b'{"kind":"end","time":10,"rank":0,"attempt":2}',
    ]
    (found,) = found_in(tmp_path / "log", b"\n".join(lines) + b"\n")
    states = document(found.account)["states"]
    assert (found.account.start_ns, states["queue"], states["down"], states["startup"]) == (0, 3.0, 4.0, 3.0)


times = st.one_of(st.integers(0, 30), st.floats(0, 30), st.sampled_from([700, 1e5, 4e9, -5, 1e18, 0.1, 1e-9]))
small = st.integers(0, 3)
phases = st.dictionaries(
    st.sampled_from(["forward", "communication", "loader", "checkpoint", "restore", "compile", "mine"]),
    st.floats(-1, 20) | st.sampled_from([1e300, 0.0, 1e-12]),
    max_size=4,
)
strange = st.none() | st.booleans() | st.text(max_size=3) | st.lists(st.integers(), max_size=2) | st.floats()
lines = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(
            ["step"] * 5
            + ["attempt", "attempt", "phase", "beat", "end", "checkpoint", "run", "run_end", "look", "odd"]
        )
    },
    optional={
        "time": times,
        "rank": small,
        "attempt": st.integers(1, 3),
        "step": st.integers(-1, 6),
        "seconds": st.floats(0, 40) | st.sampled_from([-1, 0, 1e9]),
        "phases": phases,
        "phase": st.sampled_from(["forward", "checkpoint", "restore", "mine", "none"]),
        "samples": st.integers(0, 99),
        "count": st.integers(1, 4),
        "run": st.sampled_from(["a", "a", "b"]),
        "committed": st.booleans(),
        "reason": st.sampled_from(["finished", "failed", "killed", "resumed", "?"]),
        "resume_step": st.integers(-1, 6),
        "world_size": st.integers(1, 5),
        "devices": st.integers(1, 8),
        "group": st.sampled_from(["x", "y", 1]),
        "stage": small,
        "submit_time": times,
        "flops_per_step": st.floats(0, 1e15),
        "peak_flops_per_second": st.floats(1, 1e15),
        "phase_states": st.dictionaries(st.just("mine"), st.sampled_from(["loader", "lost", "?"])),
    },
)
odd_lines = st.dictionaries(st.sampled_from(["kind", "time", "rank", "step", "seconds", "phases"]), strange)
any_bytes = st.binary(max_size=40)


@st.composite
def files(draw):
    parts = []
    for line in draw(st.lists(lines | lines | lines | odd_lines | any_bytes, max_size=25)):
        parts.append(line if isinstance(line, bytes) else json.dumps(line).encode())
    return b"\n".join(parts)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=files(), packed=st.booleans(), window=st.none() | st.tuples(times, times))
def test_states_sum_to_wall_time_for_any_file(raw, packed, window):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        path.write_bytes(gzip.compress(raw) if packed else raw)
        window = window and tuple(round(at * 1e9) for at in sorted(window))
        try:
            runs = replay(str(path), stall_seconds=5, window=window)
        except LogError as error:
            assert str(path) in str(error)
            return
        for found in runs:
            account = found.account
            assert closes(account)
            assert len(account.ranks) == len({rank.rank for rank in account.ranks})
            text = json.dumps(document(account), allow_nan=False)
            assert json.loads(text)["run"] == account.run
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_file, "BLOCK_BYTES", 200)
            again = replay(str(path), stall_seconds=5, window=window)
        for one, other in zip(again, runs, strict=True):
            assert differing(one, other) == []


def test_oversized_line_counts_as_one(tmp_path):
    (found,) = found_in(tmp_path / "log", BASE + b"x" * 2_500_000 + b"\n" + step(6, 5) + b"broken\n")
    assert found.problems.lines == 10
    assert [number for number, _ in found.problems.listed] == [8, 10]


def test_a_log_cannot_set_internal_fields():
    """They are unknown fields, of whatever type, and leave the line's own values alone."""
    internal = {"time_ns": 5, "seconds_ns": "x", "device_ns": 7, "step_number": [9], "warnings": {"w": 1}}
    plain = {"kind": "step", "time": 2, "step": 3, "seconds": 1.0}
    raw = json.dumps({**plain, **internal}).encode()
    assert asdict(parse(raw)) == asdict(parse(json.dumps(plain).encode()))
    assert unknown_fields(raw) == set(internal)


@pytest.mark.parametrize("name", ["time_ns", "seconds_ns", "device_ns", "step_number", "warnings"])
@pytest.mark.parametrize("value", [b"0", b"1", b"-1", b"null", b"[]", b'["text"]', b"true"])
def test_no_line_with_internal_fields_is_known(name, value):
    assert type(parse(b'{"kind":"beat","time":1}')) is KnownLine
    raw = b'{"kind":"beat","time":1,"internal %s":%s}' % (name.encode(), value)
    with suppress(LineError):
        assert type(parse(raw)) is not KnownLine


def test_times_too_far_apart_are_refused(tmp_path):
    lines = [
        b'{"kind":"beat","rank":%d,"time":%d}\n' % one for one in ((0, -4_000_000_000), (1, 4_000_000_000))
    ]
    with pytest.raises(LogError, match="run 'run': its times are more than 146 years apart"):
        found_in(tmp_path / "log", b"".join(lines))


def test_more_phases_than_the_core_takes(tmp_path):
    """Those beyond count as what they are, under one name for each state."""
    states = json.dumps({f"p{i}": ("loader", "forward", "h2d")[i % 3] for i in range(900)})
    attempt = f'{{"kind":"attempt","time":0,"rank":0,"attempt":1,"phase_states":{states}}}\n'
    lines = [
        f'{{"kind":"step","time":{i + 1},"rank":0,"attempt":1,"step":{i},"seconds":1,"phases":{{"p{i}":0.75}}}}\n'
        for i in range(900)
    ]
    (found,) = found_in(tmp_path / "log", (attempt + "".join(lines)).encode())
    states = document(found.account)["states"]
    assert (states["loader"], states["h2d"], states["unattributed"]) == (225.0, 225.0, 225.0 + 225.0)
    assert len(found.account.straggler.phases[0, 1].phases) < 256
