"""Blocks of lines that are decoded at once give the same account, problems and hang as lines that are read one at a time."""

from __future__ import annotations

import json
import random
import re
import sys

import pytest
from support.account.near import differing
from support.account.runlog_history import log

from goodput.runlog import LogError, column_scan, log_file, replay

PATHS = sys.modules["goodput.runlog.replay"]
SECOND = 10**9


def assert_same(path, monkeypatch, lines_at_once: int, block_bytes: int = 1 << 18, **options) -> int:
    """Returns how many lines were taken in blocks."""
    taken = []

    def count(columns, attempt):
        taken.append(len(columns.step_rows))
        return lines_of(columns, attempt)

    lines_of = PATHS._lines_of
    with monkeypatch.context() as patch:
        for module in (PATHS, column_scan):
            patch.setattr(module, "columns_of", lambda *_: None)
        expected = replay(str(path), **options)
    with monkeypatch.context() as patch:
        patch.setattr(PATHS, "LINES_AT_ONCE", lines_at_once)
        patch.setattr(log_file, "BLOCK_BYTES", block_bytes)
        patch.setattr(PATHS, "_lines_of", count)
        found = replay(str(path), **options)
    for one, other in zip(found, expected, strict=True):
        # What is out of order is told of once it is taken.
        one.problems.listed.sort()
        other.problems.listed.sort()
        wrong = differing(one, other)
        assert wrong == [], {name: (getattr(one, name), getattr(other, name)) for name in wrong}
    return sum(taken)


def disturbed(lines: list[str], rng: random.Random) -> list[str]:
    """With lines that are repeated, out of order, invalid, or changed in a field."""
    found = list(lines)
    for _ in range(rng.randrange(12)):
        at = rng.randrange(1, len(found)) if len(found) > 1 else 0
        kind = rng.randrange(7)
        if kind == 0:
            found.insert(at, found[at])
        elif kind == 1:
            found[at - 1 : at + 1] = found[at - 1 : at + 1][::-1]
        elif kind == 2:
            found.insert(at, found[at][: rng.randrange(len(found[at]))] + "x")
        elif found[at].endswith("}") and '"step"' in found[at][:20]:
            fields = json.loads(found[at])
            if "seconds" in fields:
                fields |= rng.choice(
                    [
                        {"samples": 1 << 61},
                        {"seconds": fields["seconds"] * rng.choice([0, 0.5, 1.0001, 2])},
                        {"device_seconds": fields["seconds"] * rng.choice([0.5, 1, 3])},
                        {"phases": {"forward": fields["seconds"] + rng.choice([1e-9, 1e-4, 1])}},
                        {"phases": {"forward": -1.0, "odd": 0.001, "rollout": 1e300}},
                        {"count": rng.choice([2, 1 << 40]), "unknown": 1},
                        {"time": fields["time"] + rng.choice([-500, -0.001, 0.001, 500, 10_000])},
                    ]
                )
            found[at] = json.dumps(fields)
    return found


NUMBERS = (
    *("1e0", "1.0", "10e-1", "-0", "-0.0", "1e400", "-1", "9" * 25, "4611686018.427387904", "0.0000000001"),
    *("1.00000000049", "2.9999999995", "NaN", "-Infinity", "null", "true", '"1"', "[1]", "01", "1.", ".5"),
    *("4000000000", "3999999999.999999999", "123456789012.123456789123456789"),
)
TEXTS = ("f\\u006frward", "f\\n", "\\ud800", "ö", "a\0b", "\x1b[2J", "", "x" * 300)


def hostile(line: str, rng: random.Random) -> str:
    """A line with one change that a JSON reader may take in more than one way."""
    places = [(found.start(1), found.end(1)) for found in re.finditer(r":(-?[0-9.]+)", line)] or [(0, 0)]
    low, high = rng.choice(places)
    key = rng.choice(re.findall(r'"(\w+)":', line) or [""])
    return rng.choice(
        [
            line[:low] + rng.choice(NUMBERS) + line[high:],
            f'{line[:-1]},"{key}":{rng.choice(NUMBERS)}}}',
            f'{{"{key}":{rng.choice(NUMBERS)},{line[1:]}',
            line.replace("forward", rng.choice(TEXTS), 1),
            line.replace(":", " : ").replace(",", " ,\t"),
            line + "\r",
            line + line,
            "\ufeff" + line,
            "\0" + line,
            " " + line,
            line[: rng.randrange(len(line))] if line else "",
            line[:-1] + ',"unknown":1}',
        ]
    )


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_blocks_equal_single_lines_in_hostile_logs(tmp_path, monkeypatch, first):
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        lines = log(seed)[:200]
        for at in rng.sample(range(len(lines)), min(rng.choice([1, 1, 3, 8]), len(lines))):
            lines[at] = hostile(lines[at], rng)
        path = tmp_path / "log"
        path.write_text("\n".join(lines) + rng.choice(["\n", "", "\r\n"]), newline="")
        try:
            assert_same(path, monkeypatch, rng.choice([7, 8192]), rng.choice([150, 600, 1 << 18]))
        except LogError as error:
            with monkeypatch.context() as patch:
                patch.setattr(column_scan, "columns_of", lambda *_: None)
                with pytest.raises(LogError, match=re.escape(str(error))):
                    replay(str(path))


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_blocks_equal_single_lines_in_random_logs(tmp_path, monkeypatch, first):
    folded = 0
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        lines = log(seed)
        path = tmp_path / "log"
        path.write_text("\n".join(lines if seed % 2 else disturbed(lines, rng)) + "\n")
        sizes = rng.choice([1, 7, 100, 8192]), rng.choice([100, 300, 1000, 5000, 1 << 18])
        stall_seconds = rng.choice([0.5, 60])
        folded += assert_same(path, monkeypatch, *sizes, stall_seconds=stall_seconds)
        low, high = sorted(rng.randrange(20 * SECOND) for _ in range(2))
        assert_same(path, monkeypatch, *sizes, stall_seconds=stall_seconds, window=(low, high))
    assert folded > 100


def test_interleaved_runs_and_attempts_of_a_rank(tmp_path, monkeypatch):
    """Two runs in one file, and a late line of a rank's earlier attempt."""
    lines = []
    for attempt in (1, 2):
        for step in range(30):
            for run in ("a", "b"):
                place = f'"run":"{run}","time":{attempt * 100 + step},"rank":0,"attempt":{attempt}'
                phases = f'{{"forward":0.5,"mine_{run}":0.25}}'
                lines.append(f'{{"kind":"phase",{place},"phase":"loader","seconds":0.1}}')
                lines.append(f'{{"kind":"step",{place},"step":{step},"seconds":0.75,"phases":{phases}}}')
    late = lines[10:14]
    path = tmp_path / "log"
    path.write_text("\n".join([*lines[:-20], *late, *lines[-20:]]) + "\n")
    assert_same(path, monkeypatch, 16)


def test_late_line_sets_no_limit_for_a_phase_read_before(tmp_path, monkeypatch):
    """A rank's attempts are folded in the order of reading, since each sets limits of planned phases for the next."""
    steps = [
        (1, 0, 10, 1),
        (1, 1, 20, 1),
        (2, 0, 601, 1),
        (2, 1, 4001, 3000),
        (2, 2, 4002, 1),
        (1, 2, 500, 450),
    ]
    lines = [
        f'{{"kind":"step","rank":0,"attempt":{attempt},"step":{step},"time":{end},"seconds":{length},'
        f'"phases":{{"evaluation":{length}}}}}'
        for attempt, step, end, length in steps
    ]
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + "\n")
    assert assert_same(path, monkeypatch, 8192) == len(steps)


@pytest.mark.parametrize("block_bytes", [90, 300, 1000])
def test_lines_that_omit_the_run_and_a_line_that_is_dropped(tmp_path, monkeypatch, block_bytes):
    """Also where a whole block has no run, and where a block has nothing wrong but a line that the first pass dropped."""
    lines, number = [], 0
    for run, at in (("a", 0), ("b", 50), ("a", 20), ("b", 70), ("a", 40), ("b", 90)):
        for place in (f'"run":"{run}",', ""):
            for _ in range(8):
                number, at = number + 1, at + 1
                ends = f'"time":{at},"step":{number},"seconds":0.75'
                lines.append(f'{{"kind":"step",{place}{ends},"phases":{{"forward":0.5}}}}')
    # The clock jumps for one step of each run.
    for row in (21, 61):
        fields = json.loads(lines[row])
        lines[row] = json.dumps({**fields, "time": fields["time"] + 5000}, separators=(",", ":"))
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + "\n")
    assert_same(path, monkeypatch, 100, block_bytes)
