"""The aggregator as several processes over a stream against one process: cost per rank, and added latency.

    PYTHONPATH=tests python -m bench.aggregator.scale [--ranks N] [--rounds N] [--json]

Both have a PostgreSQL ledger on loopback, and the load of bench.aggregator.serve: nodes of 8 ranks that make one step a second and
are reported every ten seconds. `single` is one `goodput serve`; `replicated` is three NATS servers with three replicas, two
ingest workers and two aggregators. CPU is that of all their processes over the paced rounds, as a share of one core, of
PostgreSQL apart; latency is from the moment when a push was due to its answer, which means on disk for `single` and on a
majority of the stream's disks for `replicated`; `ledger_delay` is how old pushes are when the ledger has them too. The two
are scraped every ten seconds, run in turn, and compared by their medians.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
from support.aggregator.replicated_cluster import ReplicatedCluster
from support.servers import servers
from support.servers.postgresql_server import PostgreSQL

from bench.aggregator.load import ROUND_SECONDS, Plan
from bench.aggregator.serve import loading
from bench.processes import children, cpu_of, peak_mib
from goodput.child_processes import Child

RANKS_OF_NODE = 8
SCRAPE_SECONDS = 10.0
FIGURES = ("cpu_percent", "database_cpu_percent", "p50_ms", "p99_ms", "ledger_delay_ms", "peak_mib")
_DELAY = re.compile(r"^goodput_aggregator_stream_delay_seconds (\S+)$", re.MULTILINE)


class Processes:
    """What is measured: processes, and the addresses that take pushes."""

    def __init__(self, pids: dict[str, int], urls: list[str], database: int, readers: list[str]):
        self.pids, self.urls, self.database, self.readers = pids, urls, database, readers

    def cpu(self) -> dict[str, float]:
        return {
            name: sum(cpu_of(pid)) + sum(sum(cpu_of(one)) for one in children(pid))
            for name, pid in self.pids.items()
        }

    def database_cpu(self) -> float:
        """Of the server and all its processes, ended ones too."""
        return sum(cpu_of(self.database)) + sum(sum(cpu_of(one)) for one in children(self.database))

    def delays(self) -> list[float]:
        """How old the last pushes were when the ledger had them, s."""
        found = [_DELAY.search(httpx.get(f"{url}/metrics", trust_env=False).text) for url in self.readers]
        return [float(one[1]) for one in found if one]


@contextmanager
def single(folder: Path, database: PostgreSQL):
    port = servers.free_ports(1)[0]
    command = [sys.executable, "-m", "goodput", "serve", "--listen", f"127.0.0.1:{port}"]
    child = Child("single", [*command, "--ledger", database.create_database()], folder)
    try:
        url = child.address(60)
        servers.wait_until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 200, 60, "it")
        yield Processes({"serve": child.process.pid}, [url], database.pid, [url])
    finally:
        child.process.send_signal(signal.SIGTERM)
        child.process.wait(60)


@contextmanager
def replicated(folder: Path, database: PostgreSQL):
    with ReplicatedCluster(folder, database) as cluster:
        pids = {name: child.process.pid for name, child in cluster.children.items()}
        pids |= {f"nats-{at}": process.pid for at, process in enumerate(cluster.nats.processes) if process}
        yield Processes(pids, cluster.urls("ingest"), database.pid, cluster.urls("aggregate"))


def measured(make, ranks: int, rounds: int) -> dict:
    """The figures of one kind under the load."""
    with tempfile.TemporaryDirectory() as at, PostgreSQL() as database, make(Path(at), database) as processes:
        urls = ",".join(f"{url}/api/v1/ingest" for url in processes.urls)
        plan = Plan(urls, "", ranks // RANKS_OF_NODE, RANKS_OF_NODE, rounds)
        with loading(plan) as load:
            time.sleep(3.0)  # what it brought in is worked off
            before, database_before, delays = processes.cpu(), processes.database_cpu(), []
            stop = threading.Event()
            sampling = threading.Thread(target=_sample, args=(processes, delays, stop))
            sampling.start()
            load.begin()
            result = load.result()
            stop.set()
            sampling.join()
            after, database_after = processes.cpu(), processes.database_cpu()
        seconds = rounds * ROUND_SECONDS
        shares = {name: 100 * (after[name] - before[name]) / seconds for name in after}
        times = sorted(result["milliseconds"])
        return {
            "cpu_percent": round(sum(shares.values()), 1),
            "cpu_percent_by_process": {name: round(share, 1) for name, share in shares.items()},
            "database_cpu_percent": round(100 * (database_after - database_before) / seconds, 1),
            "p50_ms": round(times[len(times) // 2], 2),
            "p99_ms": round(times[int(len(times) * 0.99)], 2),
            "ledger_delay_ms": round(1e3 * median(delays), 1) if delays else None,
            "peak_mib": round(sum(peak_mib(pid) for pid in processes.pids.values())),
            "failed": result["failed"],
            "rejected_ranks": result["rejected_ranks"],
        }


def _sample(processes: Processes, delays: list[float], stop: threading.Event) -> None:
    while not stop.wait(SCRAPE_SECONDS):
        delays += processes.delays()


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of several aggregators over a stream against one.")
    parser.add_argument("--ranks", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3, help="of ten seconds, of each run")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each kind, in turn")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[str, list[dict]] = {"single": [], "replicated": []}
    for _ in range(given.repeats):
        for name, make in (("single", single), ("replicated", replicated)):
            found[name].append(measured(make, given.ranks, given.rounds))
            print(f"{name}: {found[name][-1]}", file=sys.stderr, flush=True)
    medians = {
        name: {figure: _median([run[figure] for run in runs]) for figure in FIGURES}
        for name, runs in found.items()
    }
    if given.json:
        print(json.dumps({"ranks": given.ranks, "medians": medians, "runs": found}))
        return 0
    print(f"{given.ranks} ranks, one step a second, pushes of 8 ranks every 10 s\n")
    print(f"{'':24}{'single':>12}{'replicated':>12}{'ratio':>8}")
    for figure in FIGURES:
        one, several = (medians[name][figure] for name in ("single", "replicated"))
        ratio = f"{several / one:8.2f}" if one and several else ""
        print(f"{figure:24}{one if one is not None else '':>12}{several:>12}{ratio}")
    return 0


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 2) if known else None


if __name__ == "__main__":
    sys.exit(main())
