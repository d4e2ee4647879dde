"""The aggregator for hours: is what it takes in the last quarter what it took in the second?

    python -m bench.aggregator.hours [--hours N] [--ranks N] [--keep-steps DAYS] [--json]

The server and the load of bench.aggregator.serve, with a scrape of /metrics every 15 s and a read of a run's account each
minute. CPU time (utime + stime of the server and its children) and resident memory are read every ten seconds; a quarter's
CPU is a share of one core, its memory the mean. The bars are the design's: the last quarter within 5 % of the second. A
line a minute goes to stderr. With --keep-steps the server thins steps that are older; rows that are neither in the ledger nor
counted as thinned are lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from bench.aggregator.load import ROUND_SECONDS, Plan
from bench.aggregator.serve import RANKS, RANKS_OF_NODE, cpu_seconds, loading, rows_of, serving
from bench.processes import children, say

SAMPLE_SECONDS, SCRAPE_SECONDS, READ_SECONDS = 10.0, 15.0, 60.0
WITHIN = 0.05


class Sample(NamedTuple):
    seconds: float  # since the first
    cpu_seconds: float
    mib: float
    ledger_mib: float


def resident_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


class Watch:
    """Samples of a server, and what is read from it, in a thread until the block ends."""

    def __init__(self, pid: int, url: str, token: str, directory: Path):
        self.samples: list[Sample] = []
        self.scrapes: list[float] = []
        self._pid, self._directory = pid, directory
        self._url, self._headers = url.removeprefix("http://"), {"Authorization": f"Bearer {token}"}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        self._thread.join(60)

    def _run(self) -> None:
        began = time.monotonic()
        next_sample, next_scrape, next_read = began, began + SCRAPE_SECONDS, began + READ_SECONDS
        while not self._end.wait(max(0.0, min(next_sample, next_scrape, next_read) - time.monotonic())):
            now = time.monotonic()
            if now >= next_sample:
                self._sample(now - began)
                next_sample += SAMPLE_SECONDS
            if now >= next_scrape:
                self._get("/metrics")
                self.scrapes.append(time.monotonic() - now)
                next_scrape += SCRAPE_SECONDS
            if now >= next_read:
                self._get("/api/v1/runs/bench-0")
                next_read += READ_SECONDS
                self._say()

    def _sample(self, seconds: float) -> None:
        pids = [self._pid, *children(self._pid)]
        size = sum(path.stat().st_size for path in self._directory.glob("ledger.db*")) / 2**20
        self.samples.append(Sample(seconds, cpu_seconds(self._pid), sum(map(resident_mib, pids)), size))

    def _get(self, path: str) -> str:
        with contextlib.closing(HTTPConnection(self._url, timeout=60)) as connection:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read().decode()
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status}")
            return body

    def rows(self, ledger: Path) -> tuple[int, int]:
        """Rows in the ledger, and rows that were thinned out of it, at one moment."""
        while True:
            before = self._thinned()
            rows = rows_of(ledger)
            if self._thinned() == before:
                return rows, before

    def _thinned(self) -> int:
        found = re.search(r"^goodput_aggregator_ledger_rows_thinned_total (\S+)", self._get("/metrics"), re.M)
        return int(float(found[1])) if found else 0

    def _say(self) -> None:
        last = self.samples[-1]
        before = next(
            one
            for one in reversed(self.samples)
            if one.seconds <= last.seconds - 60 or one is self.samples[0]
        )
        percent = 100 * (last.cpu_seconds - before.cpu_seconds) / max(last.seconds - before.seconds, 1.0)
        say(
            f"{last.seconds / 60:5.0f} min: {percent:5.1f} % of a core, {last.mib:6.1f} MiB, ledger {last.ledger_mib:.0f} MiB"
        )


def quarters(samples: list[Sample]) -> list[dict]:
    """CPU as a share of one core, mean and most memory of each quarter of the time."""
    found, end = [], samples[-1].seconds
    for place in range(4):
        some = [one for one in samples if place * end / 4 <= one.seconds <= (place + 1) * end / 4]
        percent = 100 * (some[-1].cpu_seconds - some[0].cpu_seconds) / (some[-1].seconds - some[0].seconds)
        memory = [one.mib for one in some]
        found.append(
            {
                "cpu_percent": round(percent, 2),
                "mib": round(mean(memory), 1),
                "mib_most": round(max(memory), 1),
            }
        )
    return found


def measured(hours: float, ranks: int, keep_steps: float | None = None) -> dict:
    plan = Plan(
        "", reporters=ranks // RANKS_OF_NODE, ranks=RANKS_OF_NODE, rounds=round(hours * 3600 / ROUND_SECONDS)
    )
    with tempfile.TemporaryDirectory() as at:
        directory = Path(at)
        options = [] if keep_steps is None else ["--keep-steps", str(keep_steps)]
        with serving(directory, options) as (pid, url, tokens):
            plan.url, plan.token = f"{url}/api/v1/ingest", tokens["ingest"]
            with loading(plan) as load, Watch(pid, url, tokens["read"], directory) as watch:
                load.begin()
                result = load.result()
            rows, result["rows_thinned"] = watch.rows(directory / "ledger.db")
        times = sorted(result.pop("milliseconds"))
        del result["due_seconds"]
        result["rows_lost"] = result["rows"] - result["rows_thinned"] - rows
        size = sum(path.stat().st_size for path in directory.glob("ledger.db*"))
    found = quarters(watch.samples)
    return {
        "quarters": found,
        "last_to_second": {
            what: round(found[3][what] / found[1][what], 3) for what in ("cpu_percent", "mib", "mib_most")
        },
        "p50_ms": round(times[len(times) // 2], 1),
        "p99_ms": round(times[int(len(times) * 0.99)], 1),
        "max_ms": round(times[-1], 1),
        "metrics_seconds_most": round(max(watch.scrapes), 3),
        "ledger_bytes_per_row": round(size / result["rows"], 1),
        **result,
    }


def main() -> int:
    arguments = _arguments()
    found = measured(arguments.hours, arguments.ranks, arguments.keep_steps)
    missed = [what for what, ratio in found["last_to_second"].items() if abs(ratio - 1) > WITHIN]
    missed += [what for what in ("rows_lost", "failed", "rejected_ranks", "unanswered") if found[what]]
    if arguments.json:
        print(json.dumps({"missed": missed, **found}, indent=2))
        return 1 if missed else 0
    print(f"{arguments.ranks} ranks, {arguments.hours:g} hours")
    for place, row in enumerate(found["quarters"], 1):
        print(
            f"  quarter {place}: {row['cpu_percent']:5.1f} % of a core, {row['mib']:6.1f} MiB, {row['mib_most']:6.1f} at most"
        )
    for name, value in found.items():
        if name != "quarters":
            print(f"  {name}: {value}")
    print("bars " + (f"MISSED: {', '.join(missed)}" if missed else "met"))
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="example: python -m bench.aggregator.hours --hours 2"
    )
    parser.add_argument("--hours", type=float, default=2.0, help="(%(default)s)")
    parser.add_argument("--ranks", type=int, default=RANKS, help="in nodes of 8 (%(default)s)")
    parser.add_argument(
        "--keep-steps", type=float, metavar="DAYS", help="of the server (as the server by default)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.hours * 3600 < 8 * SAMPLE_SECONDS or arguments.ranks < RANKS_OF_NODE:
        parser.error(f"want at least {8 * SAMPLE_SECONDS:.0f} s and {RANKS_OF_NODE} ranks")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
