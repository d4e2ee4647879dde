"""What a long history costs the aggregator: restarts, windows, timelines, bytes at rest, by the number of rank-steps.

    python -m bench.history.cost [--rank-steps N ...] [--ranks N] [--fill push|write|minutes] [--directory DIR] [--json]

A run of steps of a second on an SQLite ledger, a committed checkpoint every 1 000 steps. With `push` the real `goodput
serve` receives it, as nodes of 8 ranks push that catch up after an outage: up to 1 024 steps a rank, all nodes in turn; some 4 us
of CPU a rank-step. With `write` its ledger is written directly (ledger.py), 1.5 us a rank-step and 17 bytes of
disk. Then, while the run is live:

    windows     /account?start=&end= of some lengths, at random places and at the run's end: seconds, CPU seconds and peak memory
    rolling, timeline, run      the same reads as on the page
    restart     the process is killed with SIGKILL and started again: seconds from its start until /readyz says ready,
                until the run is answered, and until its account has all steps; the account of a window must be the same as before, to the nanosecond

Then the run is ended and its ledger compacted with --keep-steps 0: bytes a rank-step before and after, and the same windows of
what is left; then both again of its hours. With `minutes` only that is measured, of a ledger that is written as compaction leaves it: half a byte of disk a
rank-step. With several sizes the growth of each figure is fitted: figure = a x rank-steps^exponent. Bars: design's section 9,
for 10^9 rank-steps, in seconds; on a busy machine the CPU seconds beside them show what is waiting. Not part of `make bench`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
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

from bench.aggregator.serve import cpu_seconds, started_address
from bench.history.ledger import write, write_thinned
from bench.history.run import RANKS, RANKS_OF_NODE, RUN, Pushes
from bench.processes import ROOT, peak_mib, say
from goodput.wire import schema

SIZES = (1_000_000, 10_000_000)
WINDOW_SECONDS = (60, 3_600, 86_400)
TRIES, READY_SECONDS_MAX, CURRENT_SECONDS_MAX = 5, 300.0, 600.0
PUSH, WRITE, MINUTES = FILLS = "push", "write", "minutes"
BARS = {
    "restart_seconds": 10.0,
    "window_seconds": 1.0,
    "thinned_window_seconds": 1.0,
    "bytes_a_row": 48.0,
    "bytes_a_row_thinned": 1.0,
}


# Steps come a thousand times as fast as in training, so segments are written as often by steps, not by seconds.
_SERVE = """
import sys
from goodput.aggregator.accounts import snapshots
from goodput.cli import main
snapshots.EVERY_SECONDS, snapshots.WAIT_TIMES = 0.1, 0
sys.exit(main())
"""


class Read(NamedTuple):
    """What a read took: seconds, CPU seconds of the server, and MiB of its resident memory before and at most."""

    seconds: float
    cpu_seconds: float
    mib_before: float
    mib_most: float


@dataclass
class Server:
    """A running aggregator: its process and a connection to it."""

    process: subprocess.Popen
    connection: HTTPConnection
    reads: dict[str, list[Read]] = field(default_factory=dict)

    def get(self, path: str, name: str = "") -> tuple[int, bytes]:
        """Status and body; what a call with a name takes is kept."""
        pid = self.process.pid
        if name:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # The peak begins anew.
        before, spent = (peak_mib(pid), cpu_seconds(pid)) if name else (0.0, 0.0)
        began = time.perf_counter()
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        body = answer.read()
        if name:
            seconds = time.perf_counter() - began
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status}: {body[:200]!r}")
            found = Read(seconds, cpu_seconds(pid) - spent, before, peak_mib(pid))
            self.reads.setdefault(name, []).append(found)
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
    command += [
        "--ledger",
        f"sqlite:///{directory}/ledger.db",
        "--abandoned-after",
        "3e7",
        "--oldest-start",
        "365",
    ]
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
    """Windows of a run, by what they are called: of each length some anywhere and one at its end, and all of it."""
    path = f"/api/v1/runs/{RUN}/account"
    for length in (*[one for one in WINDOW_SECONDS if one < seconds / 2], seconds // 2):
        for _ in range(TRIES):
            at = start + chance.randrange(0, seconds - length)
            yield f"window of {length} s", f"{path}?start={at}&end={at + length}"
        yield (
            f"window of the last {length} s",
            f"{path}?start={start + seconds - length}&end={start + seconds}",
        )
    yield f"window of all {seconds} s", f"{path}?start={start}&end={start + seconds}"


def read_all(server: Server, start: float, seconds: int) -> None:
    for name, path in windows(start, seconds, random.Random(2)):
        server.get(path, name)
    for _ in range(TRIES):
        server.get(f"/api/v1/runs/{RUN}/timeline", "timeline")
        server.get(f"/api/v1/runs/{RUN}/rolling", "rolling")
        server.get(f"/api/v1/runs/{RUN}", "run")


def history(rank_steps: int, ranks: int, directory: Path, how: str, live_only: bool) -> dict:
    """The figures of one size."""
    steps = rank_steps // ranks
    if how == MINUTES:
        a_push = Pushes(ranks, steps, 0).steps_a_push
        steps = -(-steps // a_push) * a_push
    start_ns = (time.time_ns() // 10**9 - steps - 60) * 10**9
    found: dict = {"rank_steps": steps * ranks, "load": os.getloadavg()[0]}
    began, spent = time.perf_counter(), time.process_time()
    if how == PUSH:
        with serving(directory) as server:
            fill(server, Pushes(ranks, steps, start_ns), steps, ranks, str(directory / "ledger.db"))
            found["us_of_cpu_a_rank_step"] = round(1e6 * cpu_seconds(server.process.pid) / (steps * ranks), 2)
    else:
        (write if how == WRITE else write_thinned)(directory, ranks, steps, start_ns)
        found["us_of_cpu_a_rank_step"] = round(1e6 * (time.process_time() - spent) / (steps * ranks), 2)
    found["fill_seconds"] = round(time.perf_counter() - began, 1)
    if how != MINUTES:
        found |= of_live(directory, start_ns / 1e9, steps, ranks)
    return found if live_only else found | of_thinned(directory, start_ns / 1e9, steps, ranks)


def of_live(directory: Path, start: float, steps: int, ranks: int) -> dict:
    """The figures of a run that goes on, and of a restart."""
    fixed = f"/api/v1/runs/{RUN}/account?start={start + steps // 3}&end={start + steps // 2}"
    with serving(directory) as server:
        wait("the account", CURRENT_SECONDS_MAX, lambda: is_current(server, steps * ranks))
        read_all(server, start, steps)
        live, account = summary(server), account_of(server, fixed)
        server.process.kill()
        server.process.wait()
    at_rest, began = ledger_bytes(directory), time.perf_counter()
    with serving(directory) as server:
        ready = began_until(began, server, "/readyz", lambda body: True)
        answered = began_until(began, server, f"/api/v1/runs/{RUN}", lambda body: True)
        wait("the account", CURRENT_SECONDS_MAX, lambda: is_current(server, steps * ranks))
        return {
            "ready_seconds": round(ready, 2),
            "answered_seconds": round(answered, 2),
            "restart_seconds": round(time.perf_counter() - began, 2),
            "restart_cpu_seconds": round(cpu_seconds(server.process.pid), 2),
            "is_same_after_restart": account_of(server, fixed) == account,
            "restarted_peak_mib": round(peak_mib(server.process.pid), 1),
            "bytes_a_row": round(at_rest / (steps * ranks), 2),
            **windows_of(live, ""),
            "live": live,
        }


def of_thinned(directory: Path, start: float, steps: int, ranks: int) -> dict:
    """The figures of the run when it is over and its steps are thinned to minutes, and then to hours."""
    thinned, found = thin(directory, start, steps)
    hours, found_hours = compacted(directory, start, steps, ["--keep-steps", "0", "--keep-minutes", "0"])
    return {
        "bytes_a_row_thinned": round(thinned / (steps * ranks), 3),
        **windows_of(found, "thinned_"),
        "thinned": found,
        "bytes_a_row_hours": round(hours / (steps * ranks), 4),
        **windows_of(found_hours, "hours_"),
        "hours": found_hours,
    }


def windows_of(found: dict[str, Reads], prefix: str) -> dict[str, float]:
    """The most that a window took."""
    some = [one for name, one in found.items() if name.startswith("window")]
    return {
        f"{prefix}window_seconds": max(one.most for one in some),
        f"{prefix}window_cpu_seconds": max(one.cpu_most for one in some),
        f"{prefix}window_mib": max(one.mib_most for one in some),
        f"{prefix}peak_mib": max(one.peak_mib for one in found.values()),
    }


def fill(server: Server, pushes: Pushes, steps: int, ranks: int, ledger: str) -> None:
    """Push everything; after each round of pushes wait until it is folded and the ledger has a segment of it.

    In training a round takes 17 minutes, in which both happen.
    """
    done, shown = 0, time.monotonic()
    for bodies in pushes.rounds():
        for body in bodies:
            server.push(body)
        done = min(done + pushes.steps_a_push, steps)
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
    return compacted(directory, start, steps, ["--keep-steps", "0"])


def compacted(directory: Path, start: float, steps: int, keep: list[str]) -> tuple[int, dict]:
    """Compact the ledger: its bytes, and windows of what is left."""
    goodput, ledger = str(Path(sys.executable).with_name("goodput")), f"sqlite:///{directory}/ledger.db"
    command = [goodput, "ledger", "compact", *keep, "--vacuum", "--ledger", ledger]
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
    """Of the reads of one kind: seconds in the middle and at most, CPU seconds at most, and MiB that one added at most."""

    middle: float
    most: float
    cpu_middle: float
    cpu_most: float
    mib_most: float
    peak_mib: float


def summary(server: Server) -> dict[str, Reads]:
    return {
        name: Reads(
            round(median(one.seconds for one in own), 3),
            round(max(one.seconds for one in own), 3),
            round(median(one.cpu_seconds for one in own), 2),
            round(max(one.cpu_seconds for one in own), 2),
            round(max(one.mib_most - one.mib_before for one in own), 1),
            round(max(one.mib_most for one in own), 1),
        )
        for name, own in server.reads.items()
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
        if all(what in one for one in found)
    }


def missed(found: list[dict]) -> list[str]:
    """The bars that are missed, in words."""
    problems = [
        f"{one['rank_steps']:,} rank-steps: {what} is {one[what]}, the bar is {bar:g}"
        for one in found
        for what, bar in BARS.items()
        if one.get(what, 0.0) > bar
    ]
    return problems + [
        f"{one['rank_steps']:,} rank-steps: a window's account differs after a restart"
        for one in found
        if not one.get("is_same_after_restart", True)
    ]


def plot(found: list[dict], path: Path) -> None:
    """The curves as a picture. Needs matplotlib: pip install goodput-telemetry[plots]."""
    pyplot = importlib.import_module("matplotlib.pyplot")

    figure, places = pyplot.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
    for place, what in zip(places.flat, GROWING, strict=True):
        some = [one for one in found if what in one]
        place.loglog([one["rank_steps"] for one in some], [one[what] for one in some], "o-", color="#2a78d6")
        if what in BARS:
            place.axhline(BARS[what], color="#c2410c")
        place.set(title=what.replace("_", " "), xlabel="rank-steps of the run")
        place.grid(True, which="major", alpha=0.3)
    figure.suptitle("One run's history (lines: the design's bars)")
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="What a long history costs the aggregator, by the number of rank-steps.",
        epilog="example: python -m bench.history.cost --fill write --rank-steps 1000000 10000000 100000000 --plot history.svg",
    )
    parser.add_argument(
        "--rank-steps", type=int, nargs="+", default=SIZES, help="sizes of the run (%(default)s)"
    )
    parser.add_argument("--ranks", type=int, default=RANKS, help="a multiple of 8 (%(default)s)")
    parser.add_argument("--fill", choices=FILLS, default=PUSH, help="how the ledger is filled (%(default)s)")
    parser.add_argument("--live-only", action="store_true", help="do not end and compact the run")
    parser.add_argument("--directory", type=Path, help="where the ledgers lie (default: the temp directory)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="the growth as a picture")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.live_only and arguments.fill == MINUTES:
        parser.error("--live-only: a run whose minutes are written is over")
    if arguments.ranks < RANKS_OF_NODE or arguments.ranks % RANKS_OF_NODE:
        parser.error(f"--ranks: want a multiple of {RANKS_OF_NODE}")
    if min(arguments.rank_steps) < 1000 * arguments.ranks:
        parser.error("--rank-steps: want at least 1000 steps of each rank")
    found = []
    for size in arguments.rank_steps:
        say(f"{size:,} rank-steps ...")
        directory = Path(tempfile.mkdtemp(prefix="goodput-history-", dir=arguments.directory))
        try:
            found.append(history(size, arguments.ranks, directory, arguments.fill, arguments.live_only))
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
            for name, own in one.get(state, {}).items():
                print(
                    f"  {state + ': ' + name:<38}{own.middle:>7} s, at most {own.most} s; CPU {own.cpu_middle} s, at most "
                    f"{own.cpu_most} s; {own.mib_most} MiB, {own.peak_mib} in all"
                )
    if growth:
        print("\ngrowth with rank-steps: " + ", ".join(f"{what} {slope}" for what, slope in growth.items()))
    print("\nbars " + (f"MISSED: {'; '.join(problems)}" if problems else "met"))


if __name__ == "__main__":
    sys.exit(main())
