"""The node agent beside 8 GPUs, 8 InfiniBand ports, 8 interfaces and 8 ranks at 1 Hz: its CPU, memory and scrape time.

    PYTHONPATH=tests python -m bench.node.agent [--seconds N] [--steps-per-second RATE] [--json]

The real `goodput node`, as a process of its own on the node of load.py, whose ranks make a step a second as the bar
says, or RATE, pushes every 5 s to a stub of the aggregator and is scraped every 15 s; after N seconds it is scraped
SCRAPES times more, once a second, to measure the time of a scrape. CPU is utime + stime of the agent and its drivers'
processes, ended ones included, as a share of one core, without start-up. Memory is the peak resident size of each
process; their sum counts shared pages repeatedly. The peer is Debian's prometheus-node-exporter on the same trees at
the same rate in the same run; it reads neither GPUs nor ranks. The NVML stub answers in a microsecond, so the driver's
own time is not included.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from bench.processes import ROOT, children, cpu_of, free_port, peak_mib, running, say

SECONDS, SCRAPE_SECONDS, PUSH_SECONDS, SCRAPES = 120.0, 15.0, 5.0, 30
STEPS_PER_SECOND, STEPS_PER_SECOND_MAX = 1.0, 1000.0
READY_SECONDS_MAX, SETTLE_SECONDS = 30.0, 10.0
CPU_PERCENT, MEMORY_MIB, SCRAPE_MS = 0.7, 64.0, 15.0
# Of which one finds GPUs, and two have nothing to sample, as on most nodes.
DRIVERS = ("dcgm", "nvml", "amd")
OURS, PEER = "goodput node", "prometheus-node-exporter"


class Taker:
    """The aggregator's stand-in: takes every report, and counts them and the step rows in them."""

    def __init__(self):
        from goodput.wire import schema

        taker = self
        self.pushes = self.rows = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                report = schema.decode(self.rfile.read(int(self.headers["Content-Length"])))
                taker.pushes += 1
                taker.rows += sum(block.count for rank in report.ranks for block in rank.blocks)
                answer = schema.encode(schema.Ack(accepted=len(report.ranks)))
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Target:
    """A process that serves /metrics, and what it and its children cost."""

    def __init__(self, pid: int, port: int):
        self.pid, self.times = pid, []
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)

    def scrape(self) -> str:
        began = time.perf_counter()
        self._connection.request("GET", "/metrics")
        text = self._connection.getresponse().read()
        self.times.append(time.perf_counter() - began)
        return text.decode()

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the process, and of its children: those alive, and those it has waited for."""
        own, waited = cpu_of(self.pid)
        return own, waited + sum(sum(cpu_of(child)) for child in children(self.pid))

    def peaks_mib(self) -> tuple[float, list[float]]:
        """The highest resident size of the process, and of each of its children that live."""
        return peak_mib(self.pid), [peak_mib(child) for child in children(self.pid)]


def value(text: str, series: str) -> float:
    """The sum over all label sets of a series in an exposition."""
    found = re.findall(rf"^{series}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(float(number) for number in found)


@contextlib.contextmanager
def node(aggregator: str, root: Path, steps_per_second: float):
    """The load, the agent and its peer, each as a Target by name."""
    from bench.node import load

    load.make_tree(root)
    environment = {**os.environ, **load.make_gpus(root)}
    trees = (str(root / "sys"), str(root / "proc"))
    pages = root / "pages"
    pages.mkdir()
    with contextlib.ExitStack() as stack:
        writing = [sys.executable, "-m", "bench.node.load", str(pages), str(steps_per_second)]
        writer = stack.enter_context(running(writing, cwd=ROOT, stdout=subprocess.PIPE))
        if writer.stdout.readline() != "ready\n":
            raise RuntimeError("the rank pages could not be written")
        command = [
            str(Path(sys.executable).with_name("goodput")),
            "node",
            "--directory",
            str(pages),
            "--listen",
            "127.0.0.1:0",
        ]
        command += ["--aggregator", aggregator, "--push-interval", str(PUSH_SECONDS)]
        command += ["--sysfs", trees[0], "--procfs", trees[1]]
        # On a tree that is not this machine's, it asks no driver of this machine unless an option says so.
        command += [word for driver in DRIVERS for word in ("--gpu-driver", driver)]
        agent = stack.enter_context(running(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE))
        serves = re.search(r":(\d+)/metrics", agent.stdout.readline())
        if serves is None:
            raise RuntimeError("the agent did not start")
        targets = {OURS: Target(agent.pid, int(serves[1]))}
        if shutil.which(PEER):
            port = free_port()
            command = [
                PEER,
                f"--path.sysfs={trees[0]}",
                f"--path.procfs={trees[1]}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            peer = stack.enter_context(running(command, stderr=subprocess.DEVNULL))
            targets[PEER] = Target(peer.pid, port)
        yield targets


def wait_until_ready(targets: dict[str, Target]) -> None:
    """Until every GPU and rank is served. Raises RuntimeError when that takes too long."""
    from bench.node.load import COUNT

    deadline = time.monotonic() + READY_SECONDS_MAX
    for name, target in targets.items():
        while True:
            text = ""
            with contextlib.suppress(OSError, HTTPException):
                text = target.scrape()
            if name == PEER and text:
                break
            if value(text, "goodput_gpu_up") == value(text, "goodput_rank_alive") == COUNT:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not serve all GPUs and ranks:\n{text}")
            time.sleep(0.5)
    time.sleep(SETTLE_SECONDS)


def measure(seconds: float, steps_per_second: float) -> dict:
    """Figures by name of the process, and what the agent says of itself at the end."""
    taker = Taker()
    with (
        tempfile.TemporaryDirectory() as directory,
        node(taker.url, Path(directory), steps_per_second) as targets,
    ):
        wait_until_ready(targets)
        before = {name: target.cpu_seconds() for name, target in targets.items()}
        text_before = targets[OURS].scrape()
        rows, began = taker.rows, time.monotonic()
        say(f"{seconds:.0f} s, a scrape every {SCRAPE_SECONDS:.0f} s ...")
        for at in range(1, int(seconds / SCRAPE_SECONDS) + 1):
            time.sleep(max(0.0, began + at * SCRAPE_SECONDS - time.monotonic()))
            texts = {name: target.scrape() for name, target in targets.items()}
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        after = {name: target.cpu_seconds() for name, target in targets.items()}
        spent, rows = time.monotonic() - began, taker.rows - rows
        say(f"{SCRAPES} scrapes, one a second ...")
        for target in targets.values():
            target.times.clear()
        last, again = {name: target.cpu_seconds() for name, target in targets.items()}, time.monotonic()
        for _ in range(SCRAPES):
            time.sleep(1.0)
            texts = {name: target.scrape() for name, target in targets.items()}
        again = time.monotonic() - again
        figures = {
            name: figures_of(target, before[name], after[name], spent, texts[name])
            for name, target in targets.items()
        }
        for name, target in targets.items():
            # What the scrapes took beyond the time without them, in which there are some too.
            own = target.cpu_seconds()[0] - last[name][0] - again * (after[name][0] - before[name][0]) / spent
            figures[name]["scrape_cpu_ms"] = round(1e3 * own / (SCRAPES - again / SCRAPE_SECONDS), 1)
        figures[OURS] |= own_word(text_before, texts[OURS], spent, rows)
    taker.close()
    return figures


def figures_of(target: Target, before: tuple, after: tuple, seconds: float, text: str) -> dict:
    peak, below = target.peaks_mib()
    own, of_children = (100 * (then - now) / seconds for now, then in zip(before, after, strict=True))
    return {
        "cpu_percent": round(own + of_children, 3),
        "cpu_percent_own": round(own, 3),
        "cpu_percent_children": round(of_children, 3),
        "peak_mib": round(peak + sum(below), 1),
        "peak_mib_own": round(peak, 1),
        "peak_mib_children": [round(one, 1) for one in below],
        "scrape_ms_median": round(1e3 * median(target.times), 2),
        "scrape_ms_max": round(1e3 * max(target.times), 2),
        "scrapes": len(target.times),
        "series": sum(1 for line in text.splitlines() if line and line[0] != "#"),
        "kib": round(len(text) / 1024, 1),
    }


def own_word(before: str, after: str, seconds: float, rows: int) -> dict:
    """What it says was dropped or went wrong meanwhile, in any of its parts, and the step rows a second it pushed."""
    dropped = (
        "goodput_driver_samples_dropped_total", "goodput_node_rows_thinned_total", "goodput_sdk_dropped_total",
        "goodput_health_events_dropped_total", "goodput_node_page_errors_total", "goodput_node_collector_errors_total",
    )  # fmt: skip
    return {
        "dropped": {name: value(after, name) - value(before, name) for name in dropped},
        "rows_per_second": round(rows / seconds, 1),
        "said_scrape_ms": round(1e3 * value(after, "goodput_node_scrape_seconds"), 2),
    }


def missed(figures: dict) -> list[str]:
    """The bars that are missed, in words."""
    ours = figures[OURS]
    found = []
    for what, bar in (
        ("cpu_percent", CPU_PERCENT),
        ("peak_mib", MEMORY_MIB),
        ("scrape_ms_median", SCRAPE_MS),
    ):
        if ours[what] > bar:
            found.append(f"{what} is {ours[what]}, the bar is {bar:g}")
    found += [f"{name} is {count:g}" for name, count in ours["dropped"].items() if count]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="example: PYTHONPATH=tests python -m bench.node.agent --seconds 60 --json",
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="how long CPU time is measured (%(default)s)"
    )
    parser.add_argument(
        "--steps-per-second",
        type=float,
        metavar="RATE",
        default=STEPS_PER_SECOND,
        help="how fast each rank trains (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.seconds < SCRAPE_SECONDS:
        parser.error(f"want at least {SCRAPE_SECONDS:.0f} seconds, or there is no scrape in them")
    if not 0 < arguments.steps_per_second <= STEPS_PER_SECOND_MAX:
        parser.error(f"want at most {STEPS_PER_SECOND_MAX:g} steps a second")
    figures = measure(arguments.seconds, arguments.steps_per_second)
    problems = missed(figures)
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), "missed": problems, **figures}, indent=2))
        return 1 if problems else 0
    print(
        f"Python {platform.python_version()}, {arguments.seconds:.0f} s, "
        f"{arguments.steps_per_second:g} steps a second of each rank"
    )
    titles = ("% of a core", "own", "children", "peak MiB", "own", "scrape ms", "max", "its CPU", "series")
    keys = (
        *("cpu_percent", "cpu_percent_own", "cpu_percent_children", "peak_mib", "peak_mib_own"),
        *("scrape_ms_median", "scrape_ms_max", "scrape_cpu_ms", "series"),
    )
    print(f"  {'':<26}" + "".join(f"{title:>12}" for title in titles))
    for name, row in figures.items():
        print(f"  {name:<26}" + "".join(f"{row[key]:>12}" for key in keys))
    print(f"  peaks of its drivers' processes, MiB: {figures[OURS]['peak_mib_children']}")
    print("\nbars " + (f"MISSED: {'; '.join(problems)}" if problems else "met"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
