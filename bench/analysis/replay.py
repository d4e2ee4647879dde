"""`goodput replay` of a million lines, compared with json.loads of each line of the same file in the same run.

    python -m bench.analysis.replay [--lines N] [--rounds N] [--json]

A log of eight ranks is written first: steps with four phases, and a beat now and then. Its numbers are floats of full
length, and its steps are not alike, as a trainer that logs what it measured writes them: both cost a replay more than
few digits and equal steps do. Each round times the bare pass and the replay in turn, each in a fresh process on one core;
figures and ratios are medians over rounds. The bare pass reads the file once and keeps nothing: the least that a Python
tool pays. The replay reads it twice, and decodes with msgspec into rows, which the core folds. The bar is the bare pass;
memory must not grow with lines, which a test checks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import median

LINES, ROUNDS, RANKS = 1_000_000, 3, 8
START, PHASES = 1_700_000_000.0, ("loader", "forward", "backward", "communication")
_TIMED = """
import json, resource, sys, time
if hasattr(__import__("os"), "sched_setaffinity"):
    import os
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
from goodput.runlog import replay
path, lines = sys.argv[2], 0
began, spent = time.perf_counter(), time.process_time()
if sys.argv[1] == "bare":
    with open(path, "rb") as file:
        for line in file:
            json.loads(line)
            lines += 1
else:
    (found,) = replay(path)
    lines = found.problems.lines
    assert all(sum(rank.states) == rank.wall_ns for rank in found.account.ranks)
print(json.dumps({
    "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - spent, "lines": lines,
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def write(path: Path, lines: int) -> None:
    """A log of so many lines."""
    dice, ends = Random(1), [START] * RANKS
    with open(path, "w", encoding="ascii") as file:
        file.write(f'{{"kind":"run","time":{START},"run":"bench","world_size":{RANKS}}}\n')
        for rank in range(RANKS):
            place = f'"time":{START},"rank":{rank},"attempt":1'
            file.write(f'{{"kind":"attempt",{place},"host":"n{rank // 4}"}}\n')
        for i in range(lines - RANKS - 1):
            step, rank = divmod(i, RANKS)
            spent = [most * dice.random() for most in (0.02, 0.12, 0.2, 0.05)]
            seconds = sum(spent) + 0.01 * dice.random()
            ends[rank] += seconds + 0.001
            place = f'"time":{ends[rank]!r},"rank":{rank},"attempt":1'
            if step % 50 == 49:
                file.write(f'{{"kind":"beat",{place}}}\n')
                continue
            phases = ",".join(f'"{phase}":{one!r}' for phase, one in zip(PHASES, spent, strict=True))
            length = f'"step":{step},"seconds":{seconds!r}'
            file.write(f'{{"kind":"step",{place},{length},"phases":{{{phases}}},"samples":64}}\n')


def time_one(what: str, path: Path) -> dict:
    """Figures of one pass in a process of its own."""
    command = [sys.executable, "-c", _TIMED, what, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    return json.loads(done.stdout)


def measure(lines: int, rounds: int) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.jsonl"
        write(path, lines)
        size = os.path.getsize(path)
        pairs = [(time_one("bare", path), time_one("replay", path)) for _ in range(rounds)]
    bare, ours = zip(*pairs, strict=True)
    return {
        "lines": ours[0]["lines"],
        "mib": round(size / 2**20, 1),
        "bare_seconds": round(median(one["seconds"] for one in bare), 2),
        "replay_seconds": round(median(one["seconds"] for one in ours), 2),
        "replay_over_bare": round(median(b["seconds"] / a["seconds"] for a, b in pairs), 2),
        "replay_over_bare_cpu": round(median(b["cpu_seconds"] / a["cpu_seconds"] for a, b in pairs), 2),
        "microseconds_per_line": round(median(one["seconds"] for one in ours) / ours[0]["lines"] * 1e6, 1),
        "replay_peak_mib": round(median(one["peak_mib"] for one in ours), 1),
        "bare_peak_mib": round(median(one["peak_mib"] for one in bare), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="example: python -m bench.analysis.replay --lines 100000 --json",
    )
    parser.add_argument("--lines", type=int, default=LINES, help="lines of the log (default: %(default)d)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)d")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    found = measure(arguments.lines, arguments.rounds)
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), **found}, indent=2))
        return 0
    print(
        f"\ngoodput replay, Python {platform.python_version()}, one core, medians of {arguments.rounds} rounds"
    )
    for name, value in found.items():
        print(f"  {name.replace('_', ' '):<28}{value:>12}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
