"""The account of a node's rank pages, in CPU time.

    python -m bench.analysis.local_report [--ranks N] [--steps N] [--rounds N] [--json]

So many ranks make pages of so many steps, of which a page keeps the last 1 024 and the sum of those before. Each round
reads all pages and computes the account. The bar is 0.2 s for both together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from goodput.account import compute
from goodput.sdk.reports.local_accounts import read_page, runs_of

RANKS, STEPS, ROUNDS = 8, 100_000, 5
MS = 1_000_000


def make_pages(folder: Path, ranks: int, steps: int) -> None:
    """Rank 2, where there is one, waits longer for its loader than the others."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from support.rank_page.page_maker import Rank

    before_ns = (12 * steps + 60_000) * MS
    began = {"start_unix_ns": time.time_ns() - before_ns, "start_mono_ns": time.perf_counter_ns() - before_ns}
    for number in range(ranks):
        rank, loader = Rank(folder, rank=number, world_size=ranks, **began), 5 if number == 2 else 1
        for _ in range(steps):
            rank.step(loader=loader * MS, forward=6 * MS, communication=(6 - loader) * MS)


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    began = time.process_time()
    found = function(*arguments)
    return time.process_time() - began, found


def read(folder: Path) -> Any:
    pages = [read_page(str(path), time.perf_counter_ns()) for path in sorted(folder.glob("*.page"))]
    (run,) = runs_of(pages)
    return run


def main() -> int:
    parser = argparse.ArgumentParser("bench.analysis.local_report", description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"reading": [], "account": []}
    with tempfile.TemporaryDirectory() as folder:
        make_pages(Path(folder), options.ranks, options.steps)
        for _ in range(options.rounds):
            seconds, run = timed(read, Path(folder))
            found["reading"].append(seconds)
            found["account"].append(timed(compute, run, time.time_ns())[0])
    if options.json:
        print(json.dumps(found))
        return 0
    for which, own in found.items():
        print(f"{which:<8} {', '.join(f'{one:.3f}' for one in own)} s, median {median(own):.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
