"""A rolling upgrade from an older version of goodput, and back, of a cluster over a stream while nodes push.

    git worktree add /tmp/older v0.1.0
    PYTHONPATH=tests python -m bench.aggregator.rolling /tmp/older [--wrong-order] [--json]

Two ingest workers and two aggregators over one NATS server and PostgreSQL, all of the older version, are replaced one by one
in the order of docs/scale.md, then set back in the opposite one. Nodes push a step of each run every 0.2 s meanwhile. For each
replacement it prints for how long some partitions were not served. At the end the account of each run has to be, to the
nanosecond, that of the same pushes to one store. The exit status is 1 where it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from support.aggregator.replicated_cluster import (
    CURRENT,
    PARTITIONS,
    Program,
    PushingNode,
    ReplicatedCluster,
)
from support.aggregator.replicated_plan import differing, plan
from support.servers.postgresql_server import PostgreSQL
from support.servers.servers import wait_until

RUNS, SETTLE_SECONDS_MAX = 6, 60
WORKERS, AGGREGATORS = ("ingest-0", "ingest-1"), ("aggregate-0", "aggregate-1")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("older", type=Path, help="a checkout of the older version")
    parser.add_argument("--wrong-order", action="store_true", help="workers before aggregators")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    source = given.older.resolve()
    if not (source / "src" / "goodput").is_dir():
        parser.error(f"{source}: no checkout of goodput")
    older = Program(CURRENT.command, {"PYTHONPATH": f"{source}/src:{source}/exporters"})
    up = (*WORKERS, *AGGREGATORS) if given.wrong_order else (*AGGREGATORS, *WORKERS)
    with tempfile.TemporaryDirectory() as folder, PostgreSQL() as database:
        found = rolled(Path(folder), database, older, up)
    print(json.dumps(found, indent=1) if given.json else text_of(found))
    return 1 if found["differing"] else 0


def rolled(folder: Path, database: PostgreSQL, older: Program, up: tuple[str, ...]) -> dict:
    """Seconds without some partitions by replacement, and the runs whose account is wrong in the end."""
    bodies, accounts = plan(*[f"rolled-{number}" for number in range(RUNS)])
    steps = []
    with ReplicatedCluster(folder, database, nats_servers=1, program=older) as cluster:
        every = len(up) * SETTLE_SECONDS_MAX / max(map(len, bodies))
        nodes = [PushingNode(cluster.urls("ingest"), one, every_seconds=every) for one in bodies]
        for program, names in ((CURRENT, up), (older, tuple(reversed(up)))):
            for name in names:
                what = f"{name} {'upgraded' if program is CURRENT else 'set back'}"
                steps.append({"step": what, **replaced(cluster, name, program)})
        for node in nodes:
            node.every_seconds = 0
            node.finish()
        try:
            wait_until(lambda: not differing(cluster, accounts), 120, "the accounts")
        except AssertionError:
            pass
        failed = sum(node.failed for node in nodes)
        return {"steps": steps, "pushed again": failed, "differing": differing(cluster, accounts)}


def replaced(cluster: ReplicatedCluster, name: str, program: Program) -> dict[str, float]:
    """Seconds that it took until a process was replaced and served again, and of these without some partitions."""
    ends, unserved = threading.Event(), 0.0

    def watch() -> None:
        nonlocal unserved
        before = time.monotonic()
        while not ends.wait(0.05):
            is_short = sum(map(cluster.served, AGGREGATORS)) < PARTITIONS
            now = time.monotonic()
            unserved, before = unserved + is_short * (now - before), now

    watching, began = threading.Thread(target=watch), time.monotonic()
    watching.start()
    try:
        cluster.replace(name, program)
        serving = [name] if name in AGGREGATORS else []
        try:
            wait_until(lambda: all(map(cluster.served, serving)), SETTLE_SECONDS_MAX, f"{name} to serve")
        except AssertionError as error:
            print(error, file=sys.stderr)
        return {"seconds": round(time.monotonic() - began, 1), "unserved_seconds": round(unserved, 2)}
    finally:
        ends.set()
        watching.join()


def text_of(found: dict) -> str:
    lines = [f"{'replaced':<26}{'ready and serving':>18}{'partitions unserved':>21}"]
    for step in found["steps"]:
        lines.append(f"{step['step']:<26}{step['seconds']:>16.1f} s{step['unserved_seconds']:>19.2f} s")
    wrong = ", ".join(found["differing"])
    lines.append(
        f"pushed again: {found['pushed again']}; accounts: {f'WRONG: {wrong}' if wrong else 'all exact'}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
