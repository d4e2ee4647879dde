"""The aggregator under ranks that report in nodes of 8, and one by one: CPU, latency, memory, reads, ledger.

    python -m bench.aggregator.serve [--ranks N ...] [--rounds N] [--read-rounds N] [--only NAME] [--report-version 1] [--json]
                               [--plot FILE.svg]

The real `goodput serve` in a process of its own, with tokens and an SQLite ledger on a disk, and the load
(load.py) in another, over loopback, each reporter with its own connection. Every rank makes one step a second
and is reported every ten seconds. CPU is utime + stime of the server and its children over the paced rounds, as a share of
one core; latency is from the moment when a push was due to the last byte of its answer, which is sent when the rows are
committed; memory is the peak resident size. In --read-rounds more, which count in latency and memory but not in CPU,
/metrics is scraped, and what people read is read in turn, of one run after the other: p50, p99 and longest of each, with
their number; below 100 the p99 is the longest. At the end the rows in the ledger are counted: none may be missing.

    nodes of 8, N ranks   N/8 reports of 8 ranks each in a round; by default 10 000 and 100 000 ranks
    one by one            10 000 pushes in a round
    stored bodies         peer: the same nodes of 8 with 10 000 ranks, of which each push is stored undecoded (stored_bodies.py)
    bare FastAPI          peer: a handler that reads the body and answers (bare.py); it keeps nothing
    victoria-metrics      peer: the same figures as text to /api/v1/import/prometheus; it answers before they are on disk

With several sizes the growth of each figure is fitted: figure = a x ranks^exponent. Bars: design's section 9. The first
round, in which every rank is new, and WARM_ROUNDS more are in memory and rows, not in CPU and latency.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from http.client import HTTPConnection
from importlib.util import find_spec
from itertools import cycle
from math import ceil, log
from pathlib import Path
from statistics import linear_regression

from bench.aggregator.load import RANKS_PER_RUN, ROUND_SECONDS, START_SECONDS, STEP_SECONDS, Plan
from bench.processes import ROOT, children, cpu_of, free_port, peak_mib, running, say

RANKS, RANKS_OF_NODE = 10_000, 8
SIZES = (10_000, 100_000)
ROUNDS, PEER_ROUNDS = 2, 1
# Rounds before those that are measured: the first 64 steps of a run cost more than all later ones.
WARM_ROUNDS = 6
ONE, BARE, PEER = "one by one", "bare FastAPI, one by one", "victoria-metrics, one by one"
STORED = f"stored bodies, nodes of 8, {RANKS} ranks"
# By the number of ranks, in nodes of 8.
BARS = {
    10_000: {"cpu_percent": 5, "p99_ms": 50, "peak_mib": 192, "/metrics_seconds": 0.3},
    100_000: {"cpu_percent": 50, "p99_ms": 500, "peak_mib": 1024, "/metrics_seconds": 2},
}
LEDGER_BYTES = 48
# What grows with the number of ranks.
GROWING = ("cpu_percent", "peak_mib", "p99_ms", "/metrics_seconds", "metrics_mib", "ledger_mib_per_day")
VICTORIA = "victoria-metrics"
READY_SECONDS_MAX = 30.0


@contextlib.contextmanager
def serving(directory: Path, options: Sequence[str] = ()):
    """`goodput serve` with tokens and options: its process, its address, a token that pushes and one that reads."""
    command = str(Path(sys.executable).with_name("goodput"))
    tokens = {}
    for scope in ("ingest", "read"):
        path = directory / scope
        making = [command, "token", "create", "--scope", scope, "--name", scope]
        making += ["--file", str(directory / "tokens.json"), "--output", str(path)]
        subprocess.run(making, check=True, stdout=subprocess.DEVNULL)
        tokens[scope] = path.read_text().strip()
    serve = [command, "serve", "--listen", "127.0.0.1:0", "--tokens", str(directory / "tokens.json")]
    serve += ["--ledger", f"sqlite:///{directory}/ledger.db", *options]
    with running(serve, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process.pid, started_address(process), tokens


def started_address(process) -> str:
    found = re.search(r"http://\S+", process.stdout.readline())
    if found is None:
        raise RuntimeError("the server did not start")
    return found[0]


@contextlib.contextmanager
def peer(module: str):
    command = [sys.executable, "-m", f"bench.aggregator.{module}"]
    with running(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        yield process.pid, started_address(process)


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


# What people read, beside /metrics.
READS = {
    "runs": "/api/v1/runs",
    "run": "/api/v1/runs/{run}",
    "window": "/api/v1/runs/{run}/account?start={start}&end={end}",
    "rolling": "/api/v1/runs/{run}/rolling",
    "timeline": "/api/v1/runs/{run}/timeline",
    "story": "/api/v1/runs/{run}/story",
    "health": "/api/v1/health",
}
READ_PAUSE_SECONDS, READ_SECONDS_MAX = 0.1, 60.0


class Reads:
    """GET /metrics twice in a round, and beside it one of READS after the other, from `after_seconds` on until ended.

    `cpu_seconds` is what the server takes from `warm_seconds` until then, `peak_mib` its memory at the end of that time.
    """

    def __init__(
        self, pid: int, url: str, token: str, warm_seconds: float, after_seconds: float, runs: int = 1
    ):
        self.cpu_seconds = self.peak_mib = 0.0
        self.warm_seconds, self.after_seconds = warm_seconds, after_seconds
        self.seconds: dict[str, list[float]] = {}
        self.failed = 0
        self._pid, self._runs, self._metrics_bytes = pid, runs, 0
        self._url, self._headers = url.removeprefix("http://"), {"Authorization": f"Bearer {token}"}
        self._end = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._scrape, self._read)]

    def __enter__(self) -> Reads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(READ_SECONDS_MAX)

    def _scrape(self) -> None:
        if self._end.wait(START_SECONDS + self.warm_seconds):
            return
        before, wait = cpu_seconds(self._pid), self.after_seconds - self.warm_seconds
        if self._end.wait(wait):
            return
        self.cpu_seconds, self.peak_mib = cpu_seconds(self._pid) - before, peak_of_all(self._pid)
        wait = 0.0
        while not self._end.wait(wait):
            began = time.perf_counter()
            self._metrics_bytes = self._get("/metrics", "/metrics") or self._metrics_bytes
            wait = max(0.0, ROUND_SECONDS / 2 - (time.perf_counter() - began))

    def _read(self) -> None:
        if self._end.wait(START_SECONDS + self.after_seconds):
            return
        for number, (name, path) in enumerate(cycle(READS.items())):
            if self._end.wait(READ_PAUSE_SECONDS):
                return
            now, run = time.time(), number // len(READS) % self._runs
            self._get(name, path.format(run=f"bench-{run}", start=now - 30, end=now - 10))

    def _get(self, name: str, path: str) -> int:
        """The size of the answer; one that does not come in time, or another one than 200, is counted."""
        began, connection = time.perf_counter(), HTTPConnection(self._url, timeout=READ_SECONDS_MAX)
        try:
            connection.request("GET", path, headers=self._headers | {"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            size, is_good = len(answer.read()), answer.status == 200
        except OSError:
            size, is_good = 0, False
        finally:
            connection.close()
        self.failed += not is_good
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        return size

    def figures(self) -> dict:
        """Of each read the longest as `NAME_seconds`, and p50, p99 and number in `reads`."""
        found: dict = {f"{name}_seconds": round(max(seconds), 3) for name, seconds in self.seconds.items()}
        reads = {
            name: {
                "count": len(seconds),
                "p50": round(quantile(seconds, 0.5), 3),
                "p99": round(quantile(seconds, 0.99), 3),
            }
            for name, seconds in self.seconds.items()
        }
        found |= {"reads": reads, "reads_failed": self.failed}
        return found | {"metrics_mib": round(self._metrics_bytes / 2**20, 2)}


def quantile(values: Sequence[float], share: float) -> float:
    """The least of these values that at least this share of them does not exceed."""
    return sorted(values)[max(ceil(share * len(values)) - 1, 0)]


class Load:
    """The load of a plan (load.py) in a process of its own, from the moment when the server knows all ranks."""

    def __init__(self, process: subprocess.Popen, plan: Plan):
        self._process = process
        self._tell(json.dumps(asdict(plan)))
        if self._line() != "ready\n":
            raise RuntimeError("the load could not be brought in")

    def begin(self) -> None:
        """Let the reporters push on schedule."""
        self._tell("")

    def result(self) -> dict:
        """Wait until the last push is answered: load.Result."""
        return json.loads(self._line())

    def end(self) -> None:
        self._tell("")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _tell(self, line: str) -> None:
        print(line, file=self._process.stdin, flush=True)


@contextlib.contextmanager
def loading(plan: Plan):
    command = [sys.executable, "-m", "bench.aggregator.load"]
    with running(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        load = Load(process, plan)
        yield load
        load.end()


def loaded(pid: int, plan: Plan, reads: Reads | None = None) -> dict:
    """The figures of a server under a load, over the paced rounds."""
    with loading(plan) as load:
        before = cpu_seconds(pid)
        with reads or contextlib.nullcontext():
            load.begin()
            result = load.result()
        spent = reads.cpu_seconds if reads else cpu_seconds(pid) - before
    peak = {"peak_mib": peak_of_all(pid)}
    if reads:
        peak["peak_mib_without_reads"] = reads.peak_mib
    measured = (reads.warm_seconds, reads.after_seconds) if reads else (0.0, plan.rounds * ROUND_SECONDS)
    figures = _figures(plan, result, spent, measured)
    return figures | peak | (reads.figures() if reads else {})


def cpu_seconds(pid: int) -> float:
    return sum(cpu_of(pid)) + sum(sum(cpu_of(child)) for child in children(pid))


def peak_of_all(pid: int) -> float:
    """MiB of a process and its children, each at its peak."""
    return round(peak_mib(pid) + sum(map(peak_mib, children(pid))), 1)


def _figures(plan: Plan, result: dict, spent: float, measured: tuple[float, float]) -> dict:
    """`spent` is the CPU time of the `measured` seconds from the first push that was due, in which nothing was read."""
    begin, end = measured
    all_times = list(zip(result.pop("due_seconds"), result.pop("milliseconds"), strict=True))
    times = [ms for due, ms in all_times if due >= begin]
    alone = [ms for due, ms in all_times if begin <= due < end]
    seconds = plan.rounds * ROUND_SECONDS
    pushes = round(plan.reporters * (seconds - begin) / ROUND_SECONDS)
    return {
        "cpu_percent": round(100 * spent / (end - begin), 1),
        "cpu_ms_per_push": round(1e3 * spent / (end - begin) * ROUND_SECONDS / plan.reporters, 3),
        "p50_ms": round(quantile(times, 0.5), 2),
        "p99_ms": round(quantile(times, 0.99), 2),
        "p99_ms_without_reads": round(quantile(alone, 0.99), 2),
        "max_ms": round(max(times), 1),
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


def ours(plan: Plan, read_rounds: int = 1) -> dict:
    with tempfile.TemporaryDirectory() as at:
        directory = Path(at)
        with serving(directory) as (pid, url, tokens):
            plan.url, plan.token = f"{url}/api/v1/ingest", tokens["ingest"]
            warm_seconds = WARM_ROUNDS * ROUND_SECONDS
            after_seconds = warm_seconds + plan.rounds * ROUND_SECONDS
            plan.rounds += WARM_ROUNDS + read_rounds
            runs = -(-plan.reporters * plan.ranks // RANKS_PER_RUN)
            reads = Reads(pid, url, tokens["read"], warm_seconds, after_seconds, runs)
            figures = loaded(pid, plan, reads)
        figures["rows_lost"] = figures["rows"] - rows_of(directory / "ledger.db")
        size = sum(path.stat().st_size for path in directory.glob("ledger.db*"))
        a_row = size / figures["rows"]
        a_day = a_row * plan.reporters * plan.ranks * 86_400 / STEP_SECONDS / 2**20
        return figures | {"ledger_bytes_per_row": round(a_row, 1), "ledger_mib_per_day": round(a_day)}


def nodes_of(ranks: int) -> str:
    return f"nodes of 8, {ranks} ranks"


def parts(sizes: Sequence[int], rounds: int, read_rounds: int, version: int) -> dict:
    """What is measured, by name: each a call without arguments."""
    one = Plan("", reporters=RANKS, rounds=rounds, version=version)
    plans = {
        nodes_of(ranks): Plan("", "", ranks // RANKS_OF_NODE, RANKS_OF_NODE, rounds, version=version)
        for ranks in sizes
    }
    found = {name: partial(ours, plan, read_rounds) for name, plan in plans.items()} | {
        ONE: lambda: ours(one, read_rounds),
        STORED: partial(of_stored, rounds),
        BARE: of_bare,
    }
    return found | ({PEER: of_victoria} if shutil.which(VICTORIA) else {})


def of_stored(rounds: int) -> dict:
    with peer("stored_bodies") as (pid, url):
        plan = Plan(f"{url}/api/v1/ingest", "x" * 80, RANKS // RANKS_OF_NODE, RANKS_OF_NODE, rounds)
        return loaded(pid, plan)


def of_bare() -> dict:
    with peer("bare") as (pid, url):
        return loaded(pid, Plan(f"{url}/api/v1/ingest", "x" * 80, RANKS, rounds=PEER_ROUNDS))


def of_victoria() -> dict:
    with tempfile.TemporaryDirectory() as at, victoria(Path(at)) as (pid, url):
        plan = Plan(f"{url}/api/v1/import/prometheus", "", RANKS, rounds=PEER_ROUNDS, kind="text")
        return loaded(pid, plan)


def missed(found: dict) -> list[str]:
    """The bars that are missed, in words."""
    bars = [(nodes_of(ranks), what, bar) for ranks, own in BARS.items() for what, bar in own.items()]
    for name in found.keys() - {STORED, BARE, PEER}:
        bars += [
            (name, what, 0)
            for what in ("rows_lost", "failed", "rejected_ranks", "unanswered", "reads_failed")
        ]
        bars.append((name, "ledger_bytes_per_row", LEDGER_BYTES))
    return [
        f"{name}: {what} is {found[name][what]}, the bar is {bar:g}"
        for name, what, bar in bars
        if name in found and found[name].get(what, bar) > bar
    ]


def exponents(curve: dict[int, dict]) -> dict[str, float]:
    """The growth of each figure with the number of ranks: least squares of their logarithms."""
    found = {}
    for what in GROWING:
        points = [(log(ranks), log(row[what])) for ranks, row in curve.items() if row.get(what)]
        if len(points) > 1:
            found[what] = round(linear_regression(*zip(*points, strict=True)).slope, 2)
    return found


def plot(curve: dict[int, dict], path: Path) -> None:
    """The curves as a picture. Needs matplotlib: pip install goodput-telemetry[plots]."""
    pyplot = importlib.import_module("matplotlib.pyplot")

    figure, places = pyplot.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
    for place, what in zip(places.flat, GROWING, strict=True):
        place.loglog(list(curve), [row.get(what) or None for row in curve.values()], "o-", color="#2a78d6")
        for ranks, bars in BARS.items():
            if what in bars:
                place.plot([ranks], [bars[what]], "_", color="#c2410c", markersize=24, markeredgewidth=3)
        place.set(title=what.replace("_", " "), xlabel="ranks")
        place.grid(True, which="major", alpha=0.3)
    figure.suptitle(
        f"The aggregator by number of ranks (bars: the design's), Python {platform.python_version()}"
    )
    figure.savefig(path)


def main() -> int:
    arguments = _arguments()
    found = {}
    given = arguments.rounds, arguments.read_rounds, arguments.report_version
    for name, part in parts(arguments.ranks, *given).items():
        if arguments.only in (None, name) and not (
            arguments.plot and name not in map(nodes_of, arguments.ranks)
        ):
            say(f"{name} ...")
            found[name] = part()
    problems = missed(found)
    curve = {ranks: found[nodes_of(ranks)] for ranks in arguments.ranks if nodes_of(ranks) in found}
    growth = exponents(curve)
    if arguments.plot:
        plot(curve, arguments.plot)
    if arguments.json:
        version = platform.python_version()
        print(json.dumps({"python": version, "missed": problems, "exponents": growth, **found}, indent=2))
        return 1 if problems else 0
    print(f"Python {platform.python_version()}, {arguments.rounds} rounds of {ROUND_SECONDS:.0f} s")
    _print_table(found)
    if growth:
        print("\ngrowth with ranks: " + ", ".join(f"{what} {slope}" for what, slope in growth.items()))
    print("\nbars " + (f"MISSED: {'; '.join(problems)}" if problems else "met"))
    return 1 if problems else 0


def _print_table(found: dict) -> None:
    keys = (
        "cpu_percent",
        "cpu_ms_per_push",
        "p50_ms",
        "p99_ms_without_reads",
        "p99_ms",
        "peak_mib_without_reads",
        "peak_mib",
        "/metrics_seconds",
        "ledger_bytes_per_row",
    )
    print(f"  {'':<38}" + "".join(f"{key:>24}" for key in keys))
    for name, row in found.items():
        print(f"  {name:<38}" + "".join(f"{row.get(key, ''):>24}" for key in keys))
    names = ["/metrics", *READS]
    print(f"\n  seconds: p50, p99, most (number){'':<7}" + "".join(f"{name:>28}" for name in names))
    for name, row in found.items():
        print(f"  {name:<38}" + "".join(f"{_read_text(row, key):>28}" for key in names))


def _read_text(row: dict, name: str) -> str:
    read = row.get("reads", {}).get(name)
    return (read and f"{read['p50']}, {read['p99']}, {row[f'{name}_seconds']} ({read['count']})") or ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="example: python -m bench.aggregator.serve --ranks 1000 3000 10000 30000 100000 --plot curve.svg",
    )
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=SIZES, help="numbers of ranks in nodes of 8 (%(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of ten seconds, that are measured (%(default)s)"
    )
    parser.add_argument("--read-rounds", type=int, default=1, help="beside which runs are read (%(default)s)")
    parser.add_argument("--only", metavar="NAME", help="one line of the table alone")
    parser.add_argument(
        "--report-version", type=int, choices=(1, 2), default=2, help="of what is pushed (%(default)s)"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="the sizes alone, and their curves as a picture"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install goodput-telemetry[plots]")
    if min(arguments.rounds, arguments.read_rounds) < 1 or min(arguments.ranks) < RANKS_OF_NODE:
        parser.error(f"want at least one round of each kind and {RANKS_OF_NODE} ranks")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
