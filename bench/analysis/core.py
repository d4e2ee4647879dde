"""Rows of interleaved ranks folded by the core, compared with json.loads of each row in the same run.

    python -m bench.analysis.core [--ranks N] [--blocks N] [--rounds N] [--json]

A group of so many ranks pushes blocks of five rows in turn, as an aggregator sees them; a row has twelve phases, seven
of them with time. Each round times both in a fresh process on one core, in CPU time: folding a row, comparing the ranks
of its step and noting who is slow. Saving and restoring the run is timed too, since a live account is computed on a
copy. The bars are 1 us a row, 600 bytes a rank and 20 ms for a copy of 10 000 ranks. A row that waits for those of the
others of its group takes more, which is shown for a block of five rows of all ranks but one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

RANKS, BLOCKS, ROUNDS, ROWS = 10_000, 6, 3, 5
_TIMED = """
import json, os, sys, time
from array import array
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
from goodput._core import ROW_COLUMNS, CoreRun
from goodput.account.states import PHASE_STATES
ranks, blocks, rows = map(int, sys.argv[1:])
USUAL = (0, 3_000_000, 1_000_000, 40_000_000, 60_000_000, 8_000_000, 9_000_000, 0, 0, 0, 0, 0)
NOTHING = (0,) * len(PHASE_STATES)
WIDTH = len(ROW_COLUMNS) + 2 * len(PHASE_STATES)
def row(rank, number):
    totals = tuple(ns * number + (rank * 7919 + number * 104_729) % 1000 * (ns > 0) for ns in USUAL)
    return number, number - 1, sum(totals), 0, 0, *totals, *NOTHING
def block(ranks, at):
    values = array("q")
    for rank in range(ranks):
        for number in range(1 + at * rows, 1 + (at + 1) * rows):
            values.extend(row(rank, number))
    return array("i", range(ranks)), array("q", [rows] * ranks), values
def timed(call):
    began = time.process_time()
    result = call()
    return time.process_time() - began, result
run, found = CoreRun(), {"fold": 0.0, "json": 0.0}
group = run.group()
for rank in range(ranks):
    run.attempt(rank, 0, group, PHASE_STATES.values())
for at in range(blocks):
    pushed = block(ranks, at)
    found["fold"] += timed(lambda: run.fold_blocks(*pushed))[0]
    values = pushed[2]
    lines = [json.dumps(values[start : start + WIDTH].tolist()) for start in range(0, len(values), WIDTH)]
    found["json"] += timed(lambda: [json.loads(line) for line in lines] and None)[0]
found = {name: spent / (ranks * blocks * rows) * 1e6 for name, spent in found.items()}
found["copy_ms"] = min(timed(lambda: CoreRun.restore(run.save()) and None)[0] for _ in range(5)) * 1e3
found["bytes_a_rank"] = run.memory_bytes() / ranks
run.fold_blocks(*block(ranks - 1, blocks))
found["bytes_waiting"] = run.memory_bytes() / ranks
print(json.dumps(found))
"""


def timed(ranks: int, blocks: int) -> dict[str, float]:
    command = [sys.executable, "-c", _TIMED, str(ranks), str(blocks), str(ROWS)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser("bench.analysis.core", description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="of five rows of each rank")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = []
    for at in range(options.rounds):
        print(f"round {at + 1} of {options.rounds}", file=sys.stderr)
        rounds.append(timed(options.ranks, options.blocks))
    found = {name: [one[name] for one in rounds] for name in rounds[0]}
    if options.json:
        print(json.dumps(found))
        return 0
    for name, text in (("fold", "core: fold"), ("json", "json.loads")):
        ratio = median(found[name]) / median(found["fold"])
        print(f"{text:<11} {', '.join(f'{one:.2f}' for one in found[name])} us a row, {ratio:.1f} times")
    print(f"core: save and restore {', '.join(f'{one:.1f}' for one in found['copy_ms'])} ms")
    print(
        f"core: {found['bytes_a_rank'][0]:.0f} bytes a rank, "
        f"{found['bytes_waiting'][0]:.0f} while five of its rows wait"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
