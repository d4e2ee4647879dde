"""The order of a log's lines does not matter: shuffled within ten minutes, duplicated, grouped by rank, read again."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from support.account.long_log import long_log, one
from support.account.runlog_history import log

from goodput.account import document
from goodput.runlog import replay

STALL_SECONDS = 0.5
SEEDS = range(60)


def figures(path: Path, lines: list[str]) -> str:
    """The whole account, to the nanosecond, as text."""
    path.write_text("\n".join(lines) + "\n")
    return figures_of(path)


def figures_of(path: Path) -> str:
    (found,) = replay(str(path), stall_seconds=STALL_SECONDS)
    account = found.account
    return json.dumps(document(account)) + repr(account.ranks) + repr(account.restarts)


def ends(lines: list[str], minutes: float, dice: random.Random) -> list[str]:
    """The lines in the order in which they come if each is late by up to `minutes`."""
    keyed = [(json.loads(x).get("time", 0) + dice.random() * 60 * minutes, i, x) for i, x in enumerate(lines)]
    return [x for *_, x in sorted(keyed)]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_within_ten_minutes(tmp_path, seed):
    lines, dice = log(seed), random.Random(seed)
    expected = figures(tmp_path / "log", lines)
    assert figures(tmp_path / "log", ends(lines, 9.9, dice)) == expected
    dice.shuffle(lines)
    assert figures(tmp_path / "log", lines) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_duplicate_lines_count_once(tmp_path, seed):
    lines, dice = log(seed), random.Random(seed)
    expected = figures(tmp_path / "log", lines)
    assert figures(tmp_path / "log", [x for x in lines for _ in range(dice.choice([1, 1, 2, 3]))]) == expected
    assert figures(tmp_path / "log", lines + lines) == expected, "the file after itself"
    assert figures(tmp_path / "log", ends(lines + lines, 5, dice)) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_may_follow_each_other(tmp_path, seed):
    lines = log(seed)
    expected = figures(tmp_path / "log", lines)
    ranks = sorted(lines, key=lambda x: json.loads(x).get("rank", -1))
    assert figures(tmp_path / "log", ranks) == expected
    backwards = sorted(lines, key=lambda x: -json.loads(x).get("rank", 99))
    assert figures(tmp_path / "log", backwards) == expected


def test_second_replay_gives_the_same(tmp_path):
    for seed in SEEDS:
        path = tmp_path / f"{seed}"
        assert figures(path, log(seed)) == figures_of(path)
        packed = tmp_path / f"{seed}.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert figures_of(packed) == figures_of(path)


def test_long_file_shuffled_and_doubled(tmp_path):
    lines, dice = long_log(100), random.Random(1)
    expected = figures(tmp_path / "log", lines)
    assert '"lost": 16' in expected
    for _ in range(5):
        assert figures(tmp_path / "log", ends(lines, 9.9, dice)) == expected
        assert figures(tmp_path / "log", ends(lines + lines, 9.9, dice)) == expected
    assert figures(tmp_path / "log", lines + lines) == expected


def test_lines_ten_minutes_late_are_dropped(tmp_path):
    lines = long_log(20)
    late = next(i for i, x in enumerate(lines) if '"step": 3,' in x and '"rank": 0' in x)
    moved = lines[:late] + lines[late + 1 : late + 30] + [lines[late]] + lines[late + 30 :]
    path = tmp_path / "log"
    path.write_text("\n".join(moved) + "\n")
    (found,) = replay(str(path))
    at = late + 30
    assert at in found.problems.dropped
    assert any(n == at and "behind the newest line of rank 0" in text for n, text in found.problems.listed)
    assert all(sum(rank.states) == rank.wall_ns for rank in found.account.ranks)


def test_steps_without_length_in_any_order(tmp_path):
    steps = [one(10, 0, 1, i, 0, 0) for i in range(6)]
    head, end = ['{"kind":"attempt","time":0,"rank":0,"attempt":1}'], ['{"kind":"run_end","time":12}']
    expected = figures(tmp_path / "log", head + steps + end)
    assert '"kept": 6' in expected
    assert figures(tmp_path / "log", head + steps[::-1] + end) == expected
    assert figures(tmp_path / "log", head + steps + steps[::-1] + end) == expected


def test_long_ranks_may_follow_each_other(tmp_path):
    """Also where the core could not keep all steps of one rank until those of the next come; with steps that are missing."""
    lines = ['{"kind":"run","time":0,"run":"r1","world_size":2}']
    for step in [*range(5000), *range(9000, 9500)]:
        for rank in (0, 1):
            fields = f'"time":{step + 1},"rank":{rank},"attempt":1,"step":{step},"seconds":1'
            waited = 0.125 * (1 + (step + rank) % 3)
            phases = f'{{"forward":{1 - waited},"communication":{waited}}}'
            lines.append(f'{{"kind":"step",{fields},"phases":{phases}}}')
    expected = figures(tmp_path / "log", lines)
    assert '"straggler": 0.0' not in expected
    ranks = sorted(lines, key=lambda x: json.loads(x).get("rank", -1))
    assert figures(tmp_path / "log", ranks) == expected
