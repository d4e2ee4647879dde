"""Long and short steps, many steps, windows: ratios of sums, and memory that does not grow with lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
from support.account.long_log import long_log
from support.account.runlog_history import log
from support.seeds import cases

from goodput.account.states import INDEX, vector
from goodput.runlog import replay

SECOND = 10**9
# Peak memory of a replay in a process of its own, in KiB.
PEAK = """
import resource, sys
from goodput.runlog import replay
(found,) = replay(sys.argv[1])
assert sum(rank.kept_steps for rank in found.account.ranks) == int(sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write(path, lines) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def steps(lengths_ns, productive: float = 1.0, rank: int = 0, begin_ns: int = 0) -> list[str]:
    """Steps one after the other, of which a part is `forward`."""
    lines, at = [], begin_ns
    for i, ns in enumerate(lengths_ns):
        at += ns
        whole = f'"time":{at // SECOND}.{at % SECOND:09d},"rank":{rank},"attempt":1,"step":{i}'
        lines.append(
            f'{{"kind":"step",{whole},"seconds":{ns / 1e9!r},"phases":{{"forward":{ns * productive / 1e9!r}}}}}'
        )
    return lines


def test_one_long_step_and_a_thousand_short(tmp_path):
    head = ['{"kind":"run","time":0,"world_size":2}']
    head += [f'{{"kind":"attempt","time":0,"rank":{rank},"attempt":1}}' for rank in (0, 1)]
    # Both begin with a step that is as long as the next, so that nothing is taken for compilation.
    lines = [*head, *steps([1000 * SECOND], 0.25)]
    lines += [*steps([SECOND // 1000] * 1000, 1.0, rank=1), '{"kind":"run_end","time":1000}']
    (found,) = replay(write(tmp_path / "log", lines), stall_seconds=2000)
    account = found.account
    assert [rank.kept_ns for rank in account.ranks] == [1000 * SECOND, SECOND]
    # 250 s and 1 s productive of 1 001 s in kept steps and of 2 000 GPU-seconds; the mean of ratios would be 62.5 %.
    assert account.ratio("step_efficiency") == pytest.approx(251 / 1001, rel=1e-12)
    assert account.ratio("goodput") == pytest.approx(251 / 2000, rel=1e-12)
    assert account.ratio("availability") == pytest.approx(1001 / 2000, rel=1e-12)


def test_steps_of_a_microsecond_and_of_hours(tmp_path):
    lengths = [1_000, 999, 1, 3 * 3600 * SECOND + 1, 0, 7 * 3600 * SECOND, 123_456_789]
    lines = ['{"kind":"attempt","time":0,"rank":0,"attempt":1}', *steps(lengths)]
    (found,) = replay(write(tmp_path / "log", lines), stall_seconds=1e6)
    (rank,) = found.account.ranks
    assert rank.kept_steps == len(lengths) and found.problems.count == 1
    assert rank.wall_ns == rank.states[INDEX["productive"]] + rank.states[INDEX["compile"]] == sum(lengths)


def test_a_hundred_thousand_steps(tmp_path):
    lengths = [1_500_000 + 1_000 * (i % 7) for i in range(100_000)]
    lines = ['{"kind":"attempt","time":0,"rank":0,"attempt":1}', *steps(lengths)]
    (found,) = replay(write(tmp_path / "log", lines))
    (rank,) = found.account.ranks
    assert (rank.kept_steps, rank.kept_ns, rank.wall_ns) == (100_000, sum(lengths), sum(lengths))
    assert rank.states[INDEX["productive"]] == sum(lengths)


def test_memory_does_not_grow_with_lines(tmp_path):
    peaks = []
    for count in (20_000, 100_000):
        lengths = [2_000_000] * (count // 2)
        lines = [f'{{"kind":"attempt","time":0,"rank":{rank},"attempt":1}}' for rank in (0, 1)]
        for pair in zip(steps(lengths), steps(lengths, rank=1), strict=True):
            lines += pair
        command = [sys.executable, "-c", PEAK, write(tmp_path / str(count), lines), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        peaks.append(int(done.stdout))
    assert os.path.getsize(tmp_path / "100000") > os.path.getsize(tmp_path / "20000") + 8 * 2**20
    # 80 000 steps more would be over 8 MiB in any form; a few pages come and go.
    assert peaks[1] - peaks[0] < 1024, peaks


# -- windows


def parts(path: str, borders: list[int], **more):
    return [replay(path, window=pair, **more)[0].account for pair in pairwise(borders)]


def total(accounts) -> list[list[int]]:
    """Per rank the states of several accounts, summed."""
    sums: dict[int, list[int]] = {}
    for account in accounts:
        for rank in account.ranks:
            sums[rank.rank] = [a + b for a, b in zip(sums.get(rank.rank, vector()), rank.states, strict=True)]
    return [sums[rank] for rank in sorted(sums)]


@pytest.mark.parametrize("width", [1, 2, 7, 30, 90])
def test_windows_between_steps_sum_to_the_whole(tmp_path, width):
    lines = long_log(40)
    path = write(tmp_path / "log", lines)
    (whole,) = replay(path)
    account = whole.account
    # Steps of attempt 1 end at whole hundreds of seconds, those of attempt 2 begin 10 s after one.
    ends = sorted(
        {round(json.loads(x)["time"]) * SECOND for x in lines if '"step"' in x and '"kind": "step"' in x}
    )
    borders = sorted({account.start_ns, *ends[::width], account.end_ns})
    found = parts(path, borders)
    assert len(found) == len(borders) - 1
    assert total(found) == [rank.states for rank in account.ranks]
    for name in ("kept_steps", "lost_steps", "kept_ns"):
        assert sum(getattr(r, name) for a in found for r in a.ranks) == sum(
            getattr(r, name) for r in account.ranks
        )
    assert sum(a.wall_gpu_ns() for a in found) == account.wall_gpu_ns()


@pytest.mark.parametrize("seed", cases(40))
def test_windows_anywhere_close(tmp_path, seed):
    path = write(tmp_path / "log", log(seed))
    (whole,) = replay(path, stall_seconds=0.5)
    start, end = whole.account.start_ns, whole.account.end_ns
    borders = sorted(
        {start, end, *(start + (end - start) * k // 7 for k in range(1, 7)), start + (end - start) // 3}
    )
    found = parts(path, borders, stall_seconds=0.5)
    for account in found:
        assert all(sum(r.states) == r.wall_ns and min(r.states) >= 0 for r in account.ranks)
    assert sum(a.wall_gpu_ns() for a in found) == whole.account.wall_gpu_ns()
    if len(whole.account.ranks) == 1:
        # States that do not depend on single steps are the same for any windows.
        for state in ("down", "queue", "unobserved", "startup", "restore"):
            i = INDEX[state]
            assert abs(total(found)[0][i] - whole.account.ranks[0].states[i]) <= 17 * len(found), state


def test_window_with_open_or_distant_ends(tmp_path):
    path = write(tmp_path / "log", long_log(20))
    (whole,) = replay(path)
    (all_of_it,) = replay(path, window=(-(10**15), 10**15))
    assert total([all_of_it.account]) == total([whole.account])
    halves = [replay(path, window=w)[0].account for w in ((None, 500 * SECOND), (500 * SECOND, None))]
    assert total(halves) == total([whole.account])
    (outside,) = replay(path, window=(10**15, 10**15 + 1))
    assert outside.account.wall_gpu_ns() == 0 and outside.account.ratio("goodput") is None
