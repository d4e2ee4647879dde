"""The aggregator under 10 000 ranks that push one by one, and under 12 500 nodes of 8 ranks: CPU, latency, memory.

    python -m bench.aggregator [--rounds N] [--only NAME] [--report-version 1] [--json]

The real `goodput serve` in a process of its own, with tokens and an SQLite ledger on a disk, and the load
(aggregator_load.py) in another, over loopback, each reporter with its own connection. Every push has four steps of each
rank. CPU is utime + stime of the server and its children over the paced rounds, as a share of one core; latency is
from the moment when a push was due to the last byte of its answer, which is sent when the rows are committed; memory is
the peak resident size. At the end the rows in the ledger are counted: none may be missing.

    one by one            10 000 pushes in a round; once more with /metrics scraped every 10 s
    nodes of 8            12 500 reports of 8 ranks each in a round
    bare FastAPI          peer: a handler that reads the body and answers (aggregator_bare.py); it keeps nothing
    victoria-metrics      peer: the same figures as text to /api/v1/import/prometheus; it answers before they are on disk

Bars: design's section 9. The first round, in which every rank is new, is in memory and rows, not in CPU and latency.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from http.client import HTTPConnection
from pathlib import Path

from bench.aggregator_load import ROUND_SECONDS, Plan
from bench.node import children, cpu_of, free_port, peak_mib, running, say

ROOT = Path(__file__).resolve().parent.parent
RANKS, NODES, RANKS_OF_NODE = 10_000, 12_500, 8
# One round of nodes is 100 000 ranks and 400 000 rows.
ROUNDS, NODE_ROUNDS, PEER_ROUNDS = 2, 1, 1
CPU_PERCENT, P99_MS, MEMORY_MIB, NODES_CPU_PERCENT = 20.0, 100.0, 256.0, 100.0
ONE, SCRAPED, NODE, BARE, PEER = (
    *("one by one", "one by one, scraped", "nodes of 8"),
    *("bare FastAPI, one by one", "victoria-metrics, one by one"),
)
VICTORIA = "victoria-metrics"
READY_SECONDS_MAX = 30.0


@contextlib.contextmanager
def serving(directory: Path):
    """`goodput serve` with tokens: its process, its address, a token that pushes and one that reads."""
    command = str(Path(sys.executable).with_name("goodput"))
    tokens = {}
    for scope in ("ingest", "read"):
        path = directory / scope
        making = [command, "token", "create", "--scope", scope, "--name", scope]
        making += ["--file", str(directory / "tokens.json"), "--output", str(path)]
        subprocess.run(making, check=True, stdout=subprocess.DEVNULL)
        tokens[scope] = path.read_text().strip()
    serve = [command, "serve", "--listen", "127.0.0.1:0", "--tokens", str(directory / "tokens.json")]
    serve += ["--ledger", f"sqlite:///{directory}/ledger.db"]
    with running(serve, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process.pid, _address(process), tokens


def _address(process) -> str:
    found = re.search(r"http://\S+", process.stdout.readline())
    if found is None:
        raise RuntimeError("the server did not start")
    return found[0]


@contextlib.contextmanager
def bare():
    command = [sys.executable, "-m", "bench.aggregator_bare"]
    with running(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        yield process.pid, _address(process)


@contextlib.contextmanager
def victoria(directory: Path):
    port = free_port()
    command = [VICTORIA, f"-storageDataPath={directory}", f"-httpListenAddr=127.0.0.1:{port}"]
    given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with running(command, **given) as process:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            with contextlib.suppress(OSError):
                HTTPConnection("127.0.0.1", port, timeout=5).connect()
                break
            if time.monotonic() > deadline:
                raise RuntimeError("victoria-metrics did not start")
            time.sleep(0.1)
        yield process.pid, f"http://127.0.0.1:{port}"


class Scraper:
    """GET /metrics once in a round, as Prometheus does, until it is ended."""

    def __init__(self, url: str, token: str):
        self.seconds: list[float] = []
        self._url, self._headers = url.removeprefix("http://"), {"Authorization": f"Bearer {token}"}
        self._end, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        self._thread.join(60)

    def _run(self) -> None:
        connection = HTTPConnection(self._url, timeout=60)
        while not self._end.wait(
            ROUND_SECONDS / 2 if not self.seconds else max(0.0, ROUND_SECONDS - self.seconds[-1])
        ):
            began = time.perf_counter()
            connection.request("GET", "/metrics", headers=self._headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"/metrics: {answer.status}")
            self.seconds.append(time.perf_counter() - began)


def loaded(pid: int, plan: Plan, scraper: Scraper | None = None) -> dict:
    """The figures of a server under a load, over the paced rounds."""
    command = [sys.executable, "-m", "bench.aggregator_load"]
    with running(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as load:
        _tell(load, json.dumps(asdict(plan)))
        if load.stdout.readline() != "ready\n":
            raise RuntimeError("the load could not be brought in")
        before = cpu_seconds(pid)
        with scraper or contextlib.nullcontext():
            _tell(load, "")
            result = json.loads(load.stdout.readline())
        spent = cpu_seconds(pid) - before
        _tell(load, "")
    return _figures(plan, result, spent) | {
        "peak_mib": round(peak_mib(pid) + sum(map(peak_mib, children(pid))), 1),
        "scrape_seconds_max": round(max(scraper.seconds), 2) if scraper and scraper.seconds else None,
    }


def _tell(process, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def cpu_seconds(pid: int) -> float:
    return sum(cpu_of(pid)) + sum(sum(cpu_of(child)) for child in children(pid))


def _figures(plan: Plan, result: dict, spent: float) -> dict:
    times, seconds = sorted(result.pop("milliseconds")), plan.rounds * ROUND_SECONDS
    pushes = plan.rounds * plan.reporters
    return {
        "cpu_percent": round(100 * spent / seconds, 1),
        "cpu_ms_per_push": round(1e3 * spent / pushes, 3),
        "p50_ms": round(times[len(times) // 2], 2),
        "p99_ms": round(times[int(len(times) * 0.99)], 2),
        "max_ms": round(times[-1], 1),
        "seconds_behind": round(max(0.0, result.pop("seconds") - seconds), 2),
        "pushes": pushes,
        "kib_per_push": round(result["bytes_sent"] / result["sent"] / 1024, 2),
        **result,
    }


def rows_of(ledger: Path) -> int:
    """Rows in a ledger, each number of each process once."""
    from goodput.aggregator.ledger.ledger import Ledger

    opened, count = Ledger(f"sqlite:///{ledger}", create=False), 0
    try:
        for run in opened.runs():
            for process in opened.processes(run):
                count += sum(1 for _ in opened.rows(process.identity))
    finally:
        opened.close()
    return count


def ours(plan: Plan, scraped: bool) -> dict:
    with tempfile.TemporaryDirectory() as at:
        directory = Path(at)
        with serving(directory) as (pid, url, tokens):
            plan.url, plan.token = f"{url}/api/v1/ingest", tokens["ingest"]
            figures = loaded(pid, plan, Scraper(url, tokens["read"]) if scraped else None)
        figures["rows_lost"] = figures["rows"] - rows_of(directory / "ledger.db")
        size = sum(path.stat().st_size for path in directory.glob("ledger.db*"))
        return figures | {"ledger_bytes_per_row": round(size / figures["rows"], 1)}


def parts(rounds: int, version: int) -> dict:
    """What is measured, by name: each a call without arguments."""
    one = {"url": "", "reporters": RANKS, "rounds": rounds, "version": version}
    nodes = Plan("", reporters=NODES, ranks=RANKS_OF_NODE, rounds=NODE_ROUNDS, version=version)
    found = {
        ONE: lambda: ours(Plan(**one), False),
        SCRAPED: lambda: ours(Plan(**one), True),
        NODE: lambda: ours(nodes, False),
        BARE: of_bare,
    }
    return found | ({PEER: of_victoria} if shutil.which(VICTORIA) else {})


def of_bare() -> dict:
    with bare() as (pid, url):
        return loaded(pid, Plan(f"{url}/api/v1/ingest", "x" * 80, RANKS, rounds=PEER_ROUNDS))


def of_victoria() -> dict:
    with tempfile.TemporaryDirectory() as at, victoria(Path(at)) as (pid, url):
        plan = Plan(f"{url}/api/v1/import/prometheus", "", RANKS, rounds=PEER_ROUNDS, kind="text")
        return loaded(pid, plan)


def measure(rounds: int, only: str | None, version: int) -> dict:
    """Figures by name."""
    found = {}
    for name, part in parts(rounds, version).items():
        if only in (None, name):
            say(f"{name} ...")
            found[name] = part()
    return found


def missed(found: dict) -> list[str]:
    """The bars that are missed, in words."""
    bars = [
        *((ONE, what, bar) for what, bar in (("cpu_percent", CPU_PERCENT), ("p99_ms", P99_MS), ("peak_mib", MEMORY_MIB))),
        (NODE, "cpu_percent", NODES_CPU_PERCENT), (NODE, "seconds_behind", 1.0),
        *((name, what, 0) for name in (ONE, SCRAPED, NODE) for what in ("rows_lost", "failed", "rejected_ranks", "unanswered")),
    ]  # fmt: skip
    return [
        f"{name}: {what} is {found[name][what]}, the bar is {bar:g}"
        for name, what, bar in bars
        if name in found and found[name][what] > bar
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="example: python -m bench.aggregator --rounds 2 --json"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of ten seconds, that are measured (%(default)s)"
    )
    parser.add_argument(
        "--only", choices=(ONE, SCRAPED, NODE, BARE, PEER), help="one line of the table alone"
    )
    parser.add_argument(
        "--report-version", type=int, choices=(1, 2), default=2, help="of what is pushed (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("want at least one round")
    found = measure(arguments.rounds, arguments.only, arguments.report_version)
    problems = missed(found)
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), "missed": problems, **found}, indent=2))
        return 1 if problems else 0
    print(f"Python {platform.python_version()}, {arguments.rounds} rounds of {ROUND_SECONDS:.0f} s")
    keys = ("cpu_percent", "cpu_ms_per_push", "p50_ms", "p99_ms", "peak_mib", "rows_lost")
    print(f"  {'':<30}" + "".join(f"{key:>16}" for key in keys))
    for name, row in found.items():
        print(f"  {name:<30}" + "".join(f"{row.get(key, ''):>16}" for key in keys))
    print("\nbars " + (f"MISSED: {'; '.join(problems)}" if problems else "met"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
