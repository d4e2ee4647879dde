"""What a long history costs the aggregator: restarts, windows, timelines, bytes at rest, by the number of rank-steps.

    python -m bench.history [--rank-steps N ...] [--ranks N] [--directory DIR] [--json] [--plot FILE.svg]

The real `goodput serve` with an SQLite ledger receives one run of steps of a second, as nodes of 8 ranks do that catch up
after an outage: pushes of 1 024 steps a rank, all nodes in turn, a committed checkpoint every 1 000 steps. Then, while
the run is live:

    windows     /account?start=&end= at random places, for each of some lengths: the median and the longest, in seconds
    rolling, timeline, run      the same reads as on the page
    restart     the process is killed with SIGKILL and started again: seconds from its start until /readyz says ready,
                until the run is answered, and until its account has all steps; the account of a window must be the same as before, to the nanosecond

Then the run is ended and its ledger compacted with --keep-steps 0: bytes a rank-step before and after, and the same windows of
what is left. With several sizes the growth of each figure is fitted: figure = a x rank-steps^exponent. Bars: design's
section 9, for 10^9 rank-steps. Takes some 4 us of CPU a rank-step, most of it to fill the ledger; not part of `make bench`.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from math import log
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

import numpy as np

from bench.aggregator import ROOT, cpu_seconds, started_address
from bench.aggregator_load import COMMUNICATION, FORWARD, KINDS, PHASES, SAMPLES, SHARES
from bench.node import peak_mib, say
from goodput.wire import schema
from goodput.wire.step_blocks import DEVICE, END, NUMBER, START, STEP, TOTALS
from goodput.wire.step_blocks import SAMPLES as SAMPLES_COLUMN
from goodput.wire.step_columns import encode

RUN, RANKS, RANKS_OF_NODE = "history", 128, 8
SIZES = (1_000_000, 10_000_000)
STEP_NS, STEPS_A_PUSH, CHECKPOINT_STEPS = 10**9, 1024, 1000
WINDOW_SECONDS = (60, 3_600, 86_400)
TRIES, READY_SECONDS_MAX, CURRENT_SECONDS_MAX = 5, 300.0, 600.0
BARS = {"restart_seconds": 10.0, "window_seconds": 1.0, "bytes_a_row": 48.0, "bytes_a_row_thinned": 1.0}


# Steps come a thousand times as fast as in training, so segments are written as often by steps, not by seconds.
_SERVE = """
import sys
from goodput.aggregator.accounts import snapshots
from goodput.cli import main
snapshots.EVERY_SECONDS, snapshots.SHARE = 0.1, 0
sys.exit(main())
"""


class Steps:
    """The rows of ranks of each kind as they go on; all ranks of a kind have the same."""

    def __init__(self, start_ns: int):
        self._start_ns, self._chance = start_ns, np.random.default_rng(1)
        self._waited_ns, self.done = 0, 0

    def take(self, count: int) -> list[np.ndarray]:
        """The next rows, for each kind as in StepColumns.values."""
        number = np.arange(self.done + 1, self.done + count + 1, dtype=np.int64)
        waits_ns = self._chance.integers(0, STEP_NS // 50, count)
        waited_ns = self._waited_ns + np.cumsum(waits_ns)
        self.done, self._waited_ns = self.done + count, int(waited_ns[-1])
        return [self._rows(number, waits_ns, waited_ns, kind) for kind in range(KINDS)]

    def _rows(self, number: np.ndarray, waits_ns: np.ndarray, waited_ns: np.ndarray, kind: int) -> np.ndarray:
        """The higher the kind, the more a rank computes and the less it waits for the others."""
        values = np.zeros((TOTALS + 2 * len(PHASES), len(number)), np.int64)
        values[NUMBER], values[STEP], values[SAMPLES_COLUMN] = number, number - 1, SAMPLES * number
        values[END] = self._start_ns + number * STEP_NS
        values[START] = values[END] - STEP_NS + waits_ns
        totals = values[TOTALS::2]
        for place, share in enumerate(SHARES):
            totals[place] = (int(share * STEP_NS) + place) * number
        # The time before a step comes out of its own; it varies, and so do the two phases that make up for it.
        totals[FORWARD] += kind * STEP_NS // 1000 * number
        totals[COMMUNICATION] -= kind * STEP_NS // 1000 * number + waited_ns
        totals[0] += number * STEP_NS - totals.sum(axis=0)
        values[TOTALS + 1] = np.minimum(waited_ns, totals[0])
        values[DEVICE] = totals[FORWARD]
        return values


class Pushes:
    """The pushes of all nodes, round by round, until every rank has `steps`."""

    def __init__(self, ranks: int, steps: int, start_ns: int):
        self._ranks, self._count, self._start_ns = ranks, steps, start_ns
        self._steps, self._events = Steps(start_ns), 0

    def rounds(self) -> Iterator[list[bytes]]:
        while self._steps.done < self._count:
            first = self._steps.done
            rows = self._steps.take(min(STEPS_A_PUSH, self._count - first))
            blocks = [encode(values) for values in rows]
            lives = [self._live(values) for values in rows]
            events = self._checkpoints(first)
            yield [
                schema.encode(self._report(node, blocks, lives, events))
                for node in range(self._ranks // RANKS_OF_NODE)
            ]

    def _report(self, node: int, blocks: list, lives: list, events: list) -> schema.NodeReport:
        now_ns = lives[0].now_ns
        ranks = range(node * RANKS_OF_NODE, (node + 1) * RANKS_OF_NODE)
        reports = [
            schema.RankReport(
                self._identity(rank), now_ns, PHASES, lives[rank % KINDS],
                blocks=[blocks[rank % KINDS]], events=events if rank == 0 else [],
            )
            for rank in ranks
        ]  # fmt: skip
        return schema.NodeReport(f"n{node}", now_ns, reports)

    def _identity(self, rank: int) -> schema.Identity:
        return schema.Identity(
            run=RUN, rank=rank, attempt=1, world_size=self._ranks, host=f"n{rank // RANKS_OF_NODE}",
            pid=1000 + rank, start_ns=self._start_ns, device="NVIDIA H100 80GB HBM3",
            device_uuid=f"GPU-{rank:012x}", group="dp0", flops_per_step=1e15, peak_flops_per_second=9.89e14,
            gpu_hour_cost=2.5, dtype="bf16",
        )  # fmt: skip

    def _live(self, values: np.ndarray) -> schema.Live:
        done, end_ns = int(values[NUMBER, -1]), int(values[END, -1])
        totals = tuple(values[TOTALS::2, -1].tolist())
        return schema.Live(
            now_ns=end_ns, last_ns=end_ns, phase="forward", step_next=done, steps_done=done, samples=SAMPLES * done,
            alive=True, ended="", end_ns=0, totals=totals, cost_ns=12_000 * done,
        )  # fmt: skip

    def _checkpoints(self, first: int) -> list[schema.EventRow]:
        found = []
        for step in range(first, self._steps.done):
            if step % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1:
                self._events += 1
                at_ns = self._start_ns + (step + 1) * STEP_NS
                found.append(schema.EventRow(self._events, "checkpoint_committed", at_ns, step))
        return found


@dataclass
class Server:
    """A running aggregator: its process and a connection to it."""

    process: subprocess.Popen
    connection: HTTPConnection
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)  # of the server meanwhile

    def get(self, path: str, name: str = "") -> tuple[int, bytes]:
        """Status and body; the time of a call with a name is kept."""
        spent = cpu_seconds(self.process.pid) if name else 0.0
        began = time.perf_counter()
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        body = answer.read()
        if name:
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status}: {body[:200]!r}")
            self.seconds.setdefault(name, []).append(time.perf_counter() - began)
            self.cpu_seconds.setdefault(name, []).append(cpu_seconds(self.process.pid) - spent)
        return answer.status, body

    def document(self, path: str, name: str = "") -> dict:
        status, body = self.get(path, name)
        if status != 200:
            raise RuntimeError(f"{path}: {status}: {body[:200]!r}")
        return json.loads(body)

    def push(self, body: bytes) -> None:
        headers = {"Content-Type": schema.CONTENT_TYPE}
        self.connection.request("POST", "/api/v1/ingest", body, headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200 or schema.decode_ack(text).rejected:
            raise RuntimeError(f"a push was refused: {answer.status}: {text[:300]!r}")


@contextmanager
def serving(directory: Path):
    """`goodput serve` over the directory's ledger, without tokens, since it listens on loopback."""
    command = [sys.executable, "-c", _SERVE, "serve", "--listen", "127.0.0.1:0"]
    command += ["--ledger", f"sqlite:///{directory}/ledger.db", "--abandoned-after", "3e7"]
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        address = started_address(process).removeprefix("http://")
        yield Server(process, HTTPConnection(address, timeout=600))
    finally:
        process.terminate()
        process.wait(60)


def wait(what: str, seconds_max: float, is_done: Callable[[], bool]) -> float:
    """The seconds until it is done. Raises RuntimeError."""
    began = time.perf_counter()
    while not is_done():
        if time.perf_counter() - began > seconds_max:
            raise RuntimeError(f"{what}: not within {seconds_max:.0f} s")
        time.sleep(0.05)
    return time.perf_counter() - began


def is_current(server: Server, steps: int) -> bool:
    """Whether the run's account has all steps of all ranks."""
    status, body = server.get(f"/api/v1/runs/{RUN}")
    if status != 200:
        return False
    found = json.loads(body)["steps"]
    return found["kept"] + found["lost"] >= steps


def windows(start: float, seconds: int, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Places of windows in a run, by what they are called: each length a few times, and half of the run."""
    for length in (*[one for one in WINDOW_SECONDS if one < seconds / 2], seconds // 2):
        for _ in range(TRIES):
            at = start + chance.randrange(0, seconds - length)
            yield f"window of {length} s", f"/api/v1/runs/{RUN}/account?start={at}&end={at + length}"


def read_all(server: Server, start: float, seconds: int) -> None:
    for name, path in windows(start, seconds, random.Random(2)):
        server.get(path, name)
    for _ in range(TRIES):
        server.get(f"/api/v1/runs/{RUN}/timeline", "timeline")
        server.get(f"/api/v1/runs/{RUN}/rolling", "rolling")
        server.get(f"/api/v1/runs/{RUN}", "run")


def history(rank_steps: int, ranks: int, directory: Path) -> dict:
    """The figures of one size."""
    steps = rank_steps // ranks
    start_ns = (time.time_ns() // 10**9 - steps - 60) * 10**9
    start, ledger = start_ns / 1e9, directory / "ledger.db"
    fixed = f"/api/v1/runs/{RUN}/account?start={start + steps // 3}&end={start + steps // 2}"
    with serving(directory) as server:
        began = time.perf_counter()
        fill(server, Pushes(ranks, steps, start_ns), steps, ranks, str(ledger))
        filled = time.perf_counter() - began
        cpu = cpu_seconds(server.process.pid)
        wait("the account", CURRENT_SECONDS_MAX, lambda: is_current(server, steps * ranks))
        read_all(server, start, steps)
        live, account = summary(server), account_of(server, fixed)
        peak = peak_mib(server.process.pid)
        server.process.kill()
        server.process.wait()
    at_rest = ledger_bytes(directory)
    began = time.perf_counter()
    with serving(directory) as server:
        ready = began_until(began, server, "/readyz", lambda body: True)
        answered = began_until(began, server, f"/api/v1/runs/{RUN}", lambda body: True)
        wait("the account", CURRENT_SECONDS_MAX, lambda: is_current(server, steps * ranks))
        whole = time.perf_counter() - began
        is_same = account_of(server, fixed) == account
        restarted_mib = peak_mib(server.process.pid)
    thinned, again = thin(directory, start, steps)
    return {
        "rank_steps": steps * ranks,
        "fill_seconds": round(filled, 1),
        "us_of_cpu_a_rank_step": round(1e6 * cpu / (steps * ranks), 2),
        "peak_mib": round(peak, 1),
        "ready_seconds": round(ready, 2),
        "answered_seconds": round(answered, 2),
        "restart_seconds": round(whole, 2),
        "is_same_after_restart": is_same,
        "restarted_peak_mib": round(restarted_mib, 1),
        "bytes_a_row": round(at_rest / (steps * ranks), 2),
        "bytes_a_row_thinned": round(thinned / (steps * ranks), 3),
        "window_cpu_seconds": max(own.cpu_most for name, own in live.items() if name.startswith("window")),
        "window_seconds": max(own.most for name, own in live.items() if name.startswith("window")),
        "thinned_window_seconds": max(own.most for name, own in again.items() if name.startswith("window")),
        "live": live,
        "thinned": again,
        "ledger_mib": round(ledger.stat().st_size / 2**20, 1),
    }


def fill(server: Server, pushes: Pushes, steps: int, ranks: int, ledger: str) -> None:
    """Push everything; after each round of pushes wait until it is folded and the ledger has a segment of it.

    In training a round takes 17 minutes, in which both happen.
    """
    done, shown = 0, time.monotonic()
    for bodies in pushes.rounds():
        for body in bodies:
            server.push(body)
        done = min(done + STEPS_A_PUSH, steps)
        wait("the account", CURRENT_SECONDS_MAX, partial(is_current, server, done * ranks))
        if done < steps:
            wait("a segment", CURRENT_SECONDS_MAX, partial(has_segment, ledger, done * ranks))
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            say(f"  {100 * done // steps} % of {steps} steps of each rank")


def has_segment(ledger: str, rows: int) -> bool:
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        (newest,) = connection.execute("SELECT max(rows) FROM segments WHERE run = ?", (RUN,)).fetchone()
    return (newest or 0) >= rows


def began_until(began: float, server: Server, path: str, is_right: Callable[[bytes], bool]) -> float:
    """Seconds since `began` until a path is answered with 200."""

    def is_answered() -> bool:
        status, body = server.get(path)
        return status == 200 and is_right(body)

    wait(path, READY_SECONDS_MAX, is_answered)
    return time.perf_counter() - began


def thin(directory: Path, start: float, steps: int) -> tuple[int, dict]:
    """End the run, wait until it is closed, compact it: bytes of the ledger, and windows of what is left."""
    goodput = str(Path(sys.executable).with_name("goodput"))
    ledger = f"sqlite:///{directory}/ledger.db"
    with serving(directory) as server:
        began_until(time.perf_counter(), server, f"/api/v1/runs/{RUN}", lambda body: True)
        body = json.dumps({"reason": "finished"})
        server.connection.request(
            "POST", f"/api/v1/runs/{RUN}/end", body, {"Content-Type": "application/json"}
        )
        answer = server.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the run was not ended: {answer.status}: {text[:200]!r}")
        wait("the run is closed", CURRENT_SECONDS_MAX, partial(is_closed, ledger))
    command = [goodput, "ledger", "compact", "--keep-steps", "0", "--vacuum", "--ledger", ledger]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    size = ledger_bytes(directory)
    with serving(directory) as server:
        began_until(time.perf_counter(), server, "/readyz", lambda body: True)
        read_all(server, start, steps)
        return size, summary(server)


def is_closed(url: str) -> bool:
    from goodput.aggregator.ledger import closed_runs
    from goodput.aggregator.ledger.ledger import Ledger

    ledger = Ledger(url, create=False)
    try:
        return closed_runs.is_closed(ledger, RUN)
    finally:
        ledger.close()


def ledger_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("ledger.db*"))


def account_of(server: Server, path: str) -> dict:
    """Without the status, which is that of now: the ranks fall silent meanwhile."""
    return {name: value for name, value in server.document(path).items() if name != "status"}


class Reads(NamedTuple):
    """Seconds of the reads of one kind, and CPU seconds."""

    middle: float
    most: float
    cpu_most: float


def summary(server: Server) -> dict[str, Reads]:
    return {
        name: Reads(round(median(own), 3), round(max(own), 3), round(max(server.cpu_seconds[name]), 2))
        for name, own in server.seconds.items()
    }


GROWING = (
    *("ready_seconds", "restart_seconds", "window_seconds", "thinned_window_seconds"),
    *("peak_mib", "restarted_peak_mib"),
)


def exponents(found: list[dict]) -> dict[str, float]:
    """The growth of each figure with the number of rank-steps: least squares of their logarithms."""
    if len(found) < 2:
        return {}
    sizes = [log(one["rank_steps"]) for one in found]
    return {
        what: round(linear_regression(sizes, [log(max(one[what], 1e-3)) for one in found]).slope, 2)
        for what in GROWING
    }


def missed(found: list[dict]) -> list[str]:
    """The bars that are missed, in words."""
    problems = [
        f"{one['rank_steps']:,} rank-steps: {what} is {one[what]}, the bar is {bar:g}"
        for one in found
        for what, bar in BARS.items()
        if one[what] > bar
    ]
    return problems + [
        f"{one['rank_steps']:,} rank-steps: a window's account differs after a restart"
        for one in found
        if not one["is_same_after_restart"]
    ]


def plot(found: list[dict], path: Path) -> None:
    """The curves as a picture. Needs matplotlib: pip install goodput-telemetry[plots]."""
    from matplotlib import pyplot

    figure, places = pyplot.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
    for place, what in zip(places.flat, GROWING, strict=True):
        place.loglog(
            [one["rank_steps"] for one in found], [one[what] for one in found], "o-", color="#2a78d6"
        )
        if what in BARS:
            place.axhline(BARS[what], color="#c2410c")
        place.set(title=what.replace("_", " "), xlabel="rank-steps of the run")
        place.grid(True, which="major", alpha=0.3)
    figure.suptitle("One run's history (lines: the design's bars)")
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="example: python -m bench.history --rank-steps 1000000 10000000 100000000 --plot history.svg",
    )
    parser.add_argument(
        "--rank-steps", type=int, nargs="+", default=SIZES, help="sizes of the run (%(default)s)"
    )
    parser.add_argument("--ranks", type=int, default=RANKS, help="a multiple of 8 (%(default)s)")
    parser.add_argument("--directory", type=Path, help="where the ledgers lie (default: the temp directory)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="the growth as a picture")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.ranks < RANKS_OF_NODE or arguments.ranks % RANKS_OF_NODE:
        parser.error(f"--ranks: want a multiple of {RANKS_OF_NODE}")
    if min(arguments.rank_steps) < 1000 * arguments.ranks:
        parser.error("--rank-steps: want at least 1000 steps of each rank")
    found = []
    for size in arguments.rank_steps:
        say(f"{size:,} rank-steps ...")
        directory = Path(tempfile.mkdtemp(prefix="goodput-history-", dir=arguments.directory))
        try:
            found.append(history(size, arguments.ranks, directory))
        finally:
            shutil.rmtree(directory)
    problems, growth = missed(found), exponents(found)
    if arguments.plot:
        plot(found, arguments.plot)
    if arguments.json:
        print(
            json.dumps(
                {
                    "python": platform.python_version(),
                    "missed": problems,
                    "exponents": growth,
                    "sizes": found,
                },
                indent=2,
            )
        )
    else:
        print_figures(found, growth, problems)
    return 1 if problems else 0


def print_figures(found: list[dict], growth: dict[str, float], problems: list[str]) -> None:
    for one in found:
        print(f"\n{one['rank_steps']:,} rank-steps")
        for name, value in one.items():
            if name not in ("live", "thinned", "rank_steps"):
                print(f"  {name.replace('_', ' '):<28}{value!s:>12}")
        for state in ("live", "thinned"):
            for name, own in one[state].items():
                print(
                    f"  {state + ': ' + name:<28}{own.middle:>12} s, at most {own.most} s, CPU {own.cpu_most} s"
                )
    if growth:
        print("\ngrowth with rank-steps: " + ", ".join(f"{what} {slope}" for what, slope in growth.items()))
    print("\nbars " + (f"MISSED: {'; '.join(problems)}" if problems else "met"))


if __name__ == "__main__":
    sys.exit(main())
