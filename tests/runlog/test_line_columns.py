"""Lines decoded as columns are those that are parsed one by one; other lines give no columns."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from support.account.runlog_history import log

from goodput.runlog import log_file, ordered_lines, replay, scan
from goodput.runlog.column_scan import ColumnScan
from goodput.runlog.line_columns import columns_of, times_ns
from goodput.runlog.lines import parse, to_ns
from goodput.runlog.log_file import LogFile
from goodput.runlog.scan import Scan
from goodput.runlog.scan_results import RANGES_MAX, StepNumbers

STEP = b'{"kind":"step","time":2.5,"step":1,"seconds":1.0000000005,"phases":{"forward":0.25},"samples":8}\n'
PHASE = b'{"kind":"phase","time":3,"rank":2,"attempt":4,"run":"r","phase":"loader","seconds":0.1}\n'
BEAT = b'{"kind":"beat","time":4.000000001,"phase":"h2d","phases":{"h2d":0.5}}\n'

plain_times = st.tuples(
    st.booleans(), st.integers(0, 3_999_999_999), st.none() | st.text("0123456789", min_size=1, max_size=12)
)


@given(st.lists(plain_times, min_size=1, max_size=6))
def test_times_are_those_of_single_lines(parts):
    texts = ["-" * minus + str(whole) + ("" if part is None else f".{part}") for minus, whole, part in parts]
    raws = [Raw(text.encode()) for text in texts]
    found = times_ns(raws)
    assert found is not None and found.tolist() == [to_ns(bytes(raw)) for raw in raws]


@pytest.mark.parametrize("text", ["1e5", "1.5E-3", "0." + "1" * 40, "-3.25", "7", "12.5"])
def test_times_in_another_form_are_those_of_single_lines(text):
    found = times_ns([Raw(b"1.5"), Raw(text.encode())])
    assert found is not None and found.tolist() == [1_500_000_000, to_ns(text.encode())]


@pytest.mark.parametrize("text", ["null", '"6"', "[1]", "5000000000", "5000000000.5", "9" * 40, "true"])
def test_what_is_no_time_gives_none(text):
    assert times_ns([Raw(b"1.5"), Raw(text.encode())]) is None
    assert times_ns([Raw(text.encode())]) is None


def test_columns_have_what_parse_has():
    block = [STEP, PHASE, BEAT, STEP.replace(b'"seconds"', b'"count":3,"device_seconds":0.75,"seconds"')]
    columns = columns_of(7, b"".join(block))
    assert columns is not None and columns.number == 7
    lines = list(map(parse, block))
    assert columns.time_ns.tolist() == [line.time_ns for line in lines]
    assert columns.length.tolist() == [line.seconds_ns for line in lines]
    assert columns.rank.tolist() == [0, 2, 0, 0]
    assert (columns.attempts, columns.runs) == ([None, 4, None, None], [None, "r", None, None])
    assert (columns.step_rows.tolist(), columns.phase_rows) == ([0, 3], [1])
    assert [(row, line.phases) for row, line in columns.others] == [(2, {"h2d": 0.5})]
    steps = columns.steps(columns.step_rows)
    assert (steps.step.tolist(), steps.count.tolist()) == ([1, 1], [1, 3])


@pytest.mark.parametrize(
    "block",
    [
        STEP[:-1],
        b" " + STEP,
        STEP[:-1] + b" \n",
        STEP + b"\n" + STEP,
        STEP[:-1] + b" " + STEP + b"\n",  # two in a line, and a blank one
        STEP[:-1] + STEP + b"\n",
        STEP.replace(b",", b",\n", 1),
        STEP.replace(b'{"forward', b'{"}\n{'),
        STEP.replace(b"forward", b"f\\u00f6rward"),
        STEP.replace(b"forward", "förward".encode()),
        STEP.replace(b"forward", b"f\xffrward"),
        STEP.replace(b'"step":1', b'"step":-1'),
        STEP.replace(b'"step":1', b'"step":1.0'),
        STEP.replace(b'"samples"', b'"loss"'),
        STEP.replace(b"0.25", b"NaN"),
        STEP.replace(b'"step",', b'"lunch",'),
        BEAT.replace(b'"phase"', b'"mood"'),
        BEAT.replace(b'"h2d",', b"1,"),
        PHASE.replace(b'"r"', b"1"),
        b'{"kind":"mark","time":1,"text":"x"}\n',
        b'{"kind":"attempt","time":1}\n',
        b"\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b"\0\0\n",
    ],
)
def test_block_with_another_line_has_no_columns(block):
    assert columns_of(1, block) is None
    assert columns_of(1, STEP + block) is None


def test_ordinary_steps_are_parsed_in_neither_pass(tmp_path, monkeypatch):
    """Else the columns would be of no use, and nothing but the time would show it."""
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 4096)
    lines = [b'{"kind":"run","time":0,"world_size":2}\n']
    for step in range(2000):
        for rank in (0, 1):
            lines.append(
                b'{"kind":"step","rank":%d,"time":%d,"step":%d,"seconds":1}\n' % (rank, step + 1, step)
            )
    path = tmp_path / "log"
    path.write_bytes(b"".join(lines))
    parsed = []

    def count(raw):
        parsed.append(raw)
        return parse(raw)

    monkeypatch.setattr(scan, "parse", count)
    monkeypatch.setattr(ordered_lines, "parse", count)
    (found,) = replay(str(path))
    assert sum(rank.kept_steps for rank in found.account.ranks) == 4000
    assert found.problems.lines == len(lines) and found.problems.step_lines == 4000
    # The first block has the line of the run.
    assert len(parsed) < 200


def kept(scan_type: type[Scan], path: str) -> list:
    """All that a first pass keeps of runs and attempts."""
    with LogFile(path) as file:
        found = scan_type(file)
    every = [(run, track) for run in found.runs.values() for track in run.tracks.values()]
    return [
        *((run.run.name, run.high_ns, run.end_number) for run, _ in every),
        *(
            {one.name: getattr(track.attempt, one.name) for one in fields(track.attempt)}
            for _, track in every
        ),
        *(
            (one.high_ns, one.rewinds, one.step_ns, one.last_step, one.last_number, one.tail_ns)
            for _, one in every
        ),
        *(vars(track.numbers) for _, track in every),
        found.problems.document(),
    ]


def test_first_pass_keeps_the_same_by_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 600)
    taken = []

    def count(self, lines):
        taken.append(take(self, lines))
        return taken[-1]

    take = ColumnScan._take
    monkeypatch.setattr(ColumnScan, "_take", count)
    for seed in range(40):
        (tmp_path / "log").write_text("\n".join(log(seed)) + "\n")
        assert kept(ColumnScan, str(tmp_path / "log")) == kept(Scan, str(tmp_path / "log")), seed
    assert taken.count(True) > 100


@pytest.mark.parametrize("block_bytes", [100, 150, 300, 1000, 5000])
def test_first_pass_across_borders_of_blocks(tmp_path, monkeypatch, block_bytes):
    """Attempts without a line of their own, lines that omit the run, and a jump of the clock that the next line confirms."""
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    lines, number = ['{"kind":"run","run":"a","time":0}'], 0
    for run, at in (("a", 0), ("b", 50), ("a", 5000), ("b", 5050), ("a", 5020), ("b", 5070)):
        for place in (f'"run":"{run}",', ""):
            for _ in range(8):
                number, at = number + 1, at + 1
                ends = f'"time":{at},"step":{number},"seconds":{at % 5 * 3}'
                lines.append(f'{{"kind":"step",{place}{ends},"phases":{{"forward":0.5}}}}')
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    found = kept(ColumnScan, str(tmp_path / "log"))
    assert found == kept(Scan, str(tmp_path / "log"))
    assert found[-1]["dropped"] == 0


@pytest.mark.parametrize("block_bytes", [1, 50, 199, 200])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_blocks_are_the_lines(tmp_path, monkeypatch, block_bytes, end):
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(log_file, "LINE_BYTES_MAX", 200)
    lines = [b"a", b"", b"b" * 199, b"c" * 200, b"d" * 201, b"\r", b"e" * 5000, b"f"]
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines) + end)
    with LogFile(str(path)) as file:
        found = list(file.lines())
        assert list(file.lines()) == found
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    cut = [line if len(line) >= 200 else line + b"\n" for line in lines]
    cut[-1] = cut[-1] if end else lines[-1]
    assert [line for _, line in found] == [line[:200] for line in cut] + [b"\n"] * (len(end) - 1)


def test_step_numbers_beyond_the_bound_join_the_lowest():
    numbers = StepNumbers()
    for step in range(0, 3 * RANGES_MAX, 2):
        numbers.add(step, step)
    numbers.add(1, 1)
    top = 3 * RANGES_MAX - 2
    assert numbers.highest() == top and top in numbers and top - 1 not in numbers
    assert all(step in numbers for step in range(0, top, 2))
    assert 2 * RANGES_MAX + 1 not in numbers and 501 in numbers
