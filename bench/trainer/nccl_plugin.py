"""One event of NCCL's profiler plugin against a bare loop: a table whose functions do nothing, in the same process.

    PYTHONPATH=tests python -m bench.trainer.nccl_plugin [--json]

A host program calls the installed plugin's table of version 6 as NCCL does: 1 000 calls with a kernel and a transfer
each, first through the bare table, then through the plugin's, in every round. The cost of an event is the median over
rounds of the difference; `beside` is what nine rounds in ten stay below while another thread calls the plugin all the
time for a communicator of its own, which a busy machine lets run only at times. Bar: at most 100 ns an event.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from support.nccl.plugin_build import Built, build, run_host

from goodput.nccl.library import library

ROUNDS = 2001
BAR_NS = 100


def measure() -> dict[str, dict[str, float]]:
    """By event: ns of the bare call, and how much more the plugin's takes, alone and beside another thread."""
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder), "-O2")
        installed = library()
        if installed is not None:
            built = built._replace(plugin=Path(installed))
        alone, beside = (_rounds(built, folder, threads) for threads in (1, 2))
    found = {}
    for name in alone[0]:
        costs = [sorted(one[name][1] - one[name][0] for one in rounds) for rounds in (alone, beside)]
        bare_ns = median(one[name][0] for one in alone)
        found[name] = {
            "bare_ns": bare_ns,
            "cost_ns": median(costs[0]),
            "beside_ns": costs[1][9 * len(costs[1]) // 10],
        }
    return found


def _rounds(built: Built, folder: str, threads: int) -> list[dict[str, list[float]]]:
    done = run_host(built, folder, 6, "bench", seed=threads, rounds=ROUNDS, GOODPUT_RUN=f"bench-{threads}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    found = measure()
    if parser.parse_args().json:
        print(json.dumps({"bar_ns": BAR_NS, **found}))
        return 0
    for name, row in found.items():
        print(
            f"{name:14} bare {row['bare_ns']:5.1f} ns   plugin +{row['cost_ns']:5.1f} ns   "
            f"beside +{row['beside_ns']:5.1f} ns   bar {BAR_NS} ns"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
