"""One collective record against a bare loop: a call of a process group with and without its record, in one run.

    python -m bench.trainer.collectives [--json]

Each round times the bare calls and the recorded ones in turn; the cost is the median over rounds of their difference.
The call is one that returns at once, on a real tensor; `waited` is such a call and the wait for what it returned. The
page is a real one. Bar: at most 250 ns for one call.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from statistics import median
from time import perf_counter

ROUNDS, LOOPS = 61, 4000
BAR_NS = 250


class Group:
    """In place of a process group."""

    group_name, group_desc = "0", "bench"


class Work:
    pass


def allreduce(group, tensors, options):
    return None


WORK = Work()


def issue(group, tensors, options):
    return WORK


def wait(work):
    return True


def calls() -> dict:
    """Functions to time by name, each bare and recorded: (bare, recorded)."""
    import torch

    import goodput
    from goodput.rank_page.collective_records import DTYPES
    from goodput.sdk.recorder.collectives import CollectiveRecords

    goodput.start(run="bench", directory=tempfile.mkdtemp())
    dtypes = {getattr(torch, name): i for i, name in enumerate(DTYPES) if hasattr(torch, name)}
    records = CollectiveRecords(
        goodput._session.recorder, dtypes, lambda group: ("0", "bench", "gloo", 0, [0, 1]), None
    )
    positions = {"tensors": 1, "group": 0, "exact": (Group,)}
    group, tensors = Group(), [torch.ones(1024)]

    def timed(issued, left=None):
        def run(loops: int) -> float:
            began = perf_counter()
            if left is None:
                for _ in range(loops):
                    issued(group, tensors, None)
            else:
                for _ in range(loops):
                    left(issued(group, tensors, None))
            return (perf_counter() - began) / loops * 1e9

        return run

    record = records.wrap(allreduce, "all_reduce", **positions)
    return {
        "call": (timed(allreduce), timed(record)),
        "waited": (
            timed(issue, wait),
            timed(records.wrap(issue, "all_reduce", **positions), records.wrap(wait, "")),
        ),
        "bare, again": (timed(allreduce), timed(allreduce)),
    }


def measure() -> dict[str, dict[str, float]]:
    found: dict[str, tuple[list, list]] = {}
    pairs = calls()
    for _ in range(ROUNDS):
        for name, (bare, recorded) in pairs.items():
            costs = found.setdefault(name, ([], []))
            costs[0].append(bare(LOOPS))
            costs[1].append(recorded(LOOPS))
    return {
        name: {"bare_ns": median(a), "cost_ns": median(y - x for x, y in zip(a, b, strict=True))}
        for name, (a, b) in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure()
    if options.json:
        print(json.dumps({"bar_ns": BAR_NS, **found}))
        return 0
    for name, row in found.items():
        print(
            f"{name:12} bare {row['bare_ns']:7.0f} ns   recorded +{row['cost_ns']:6.0f} ns   bar {BAR_NS} ns"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
