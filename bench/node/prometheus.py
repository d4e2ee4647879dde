"""What a Prometheus pays for the agents of a cluster: CPU and memory by series, interval and what is dropped.

    PYTHONPATH=tests python -m bench.node.prometheus [--nodes N] [--interval SECONDS] [--drop REGEX] [--without-rules]
        [--warm SECONDS] [--seconds N] [--json]

The real agent of bench.node.agent, with 8 GPUs, 8 NICs and 8 ranks; Debian's Prometheus scrapes its /metrics under N names,
with the shipped rules every 10 s. CPU is what Prometheus counts of itself over N seconds, memory its resident size at
their end; both without what two hours of samples add. All nodes have the same values, which costs as much as others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.node.agent import OURS, STEPS_PER_SECOND, Taker, Target, node, value, wait_until_ready
from bench.processes import ROOT, free_port, running, say

RULES = ROOT / "deploy" / "prometheus"
BUCKETS = "goodput_(phase|step)_duration_seconds_bucket"
COUNTED = {
    "cpu": "process_cpu_seconds_total",
    "samples": "prometheus_tsdb_head_samples_appended_total",
    "series": "prometheus_tsdb_head_series",
    "resident": "process_resident_memory_bytes",
    "heap": "go_memstats_heap_inuse_bytes",
    "evaluations": "prometheus_rule_group_iterations_total",
    "missed": "prometheus_rule_group_iterations_missed_total",
}


class Repeater:
    """Serves the newest text of one agent, at most a second old, to everybody who asks."""

    def __init__(self, target: Target):
        repeater, self._target, self._lock = self, target, threading.Lock()
        self._body, self._at = b"", 0.0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                body = repeater.body()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def body(self) -> bytes:
        with self._lock:
            if time.monotonic() - self._at > 1:
                self._body = gzip.compress(self._target.scrape().encode(), 1)
                self._at = time.monotonic()
            return self._body


def configuration(address: str, nodes: int, interval: int, drop: str | None, rules: bool) -> dict:
    """Of Prometheus, in JSON, which is YAML too."""
    job = {"job_name": "goodput-node", "scrape_interval": f"{interval}s", "scrape_timeout": f"{interval}s"}
    job["static_configs"] = [
        {"targets": [address], "labels": {"instance": f"n{n}:9470", "__metrics_path__": f"/{n}"}}
        for n in range(nodes)
    ]
    if drop:
        job["metric_relabel_configs"] = [{"source_labels": ["__name__"], "regex": drop, "action": "drop"}]
    shipped = ("alerts_", "recording") if rules else ()
    files = [str(path) for path in sorted(RULES.glob("*.yml")) if path.stem.startswith(shipped)]
    return {"global": {"evaluation_interval": "10s"}, "rule_files": files, "scrape_configs": [job]}


def read(port: int) -> dict[str, float]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return {name: value(text, series) for name, series in COUNTED.items()}


def measure(
    nodes: int, interval: int, drop: str | None, rules: bool, warm: float, seconds: float
) -> dict[str, float]:
    """Figures of the last `seconds`, after `warm` seconds, in which the windows of the rules fill."""
    taker = Taker()
    with (
        tempfile.TemporaryDirectory() as directory,
        node(taker.url, Path(directory), STEPS_PER_SECOND) as targets,
    ):
        wait_until_ready(targets)
        repeater, port = Repeater(targets[OURS]), free_port()
        config = Path(directory) / "prometheus.json"
        config.write_text(json.dumps(configuration(repeater.address, nodes, interval, drop, rules)))
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        with running(command, stderr=subprocess.DEVNULL):
            time.sleep(max(warm, 2.0 * interval))
            before, began = read(port), time.monotonic()
            time.sleep(seconds)
            after, spent = read(port), time.monotonic() - began
    taker.close()
    return {
        "nodes": nodes,
        "interval_seconds": interval,
        "series": after["series"],
        "series_per_node": after["series"] / nodes,
        "samples_per_second": (after["samples"] - before["samples"]) / spent,
        "cores": (after["cpu"] - before["cpu"]) / spent,
        "evaluations_missed": (after["missed"] - before["missed"])
        / max(after["evaluations"] - before["evaluations"], 1),
        "resident_mib": after["resident"] / 2**20,
        "heap_mib": after["heap"] / 2**20,
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--nodes", type=int, default=40)
    options.add_argument("--interval", type=int, default=15, metavar="SECONDS")
    options.add_argument("--drop", metavar="REGEX", help=f"series to drop, such as '{BUCKETS}'")
    options.add_argument("--without-rules", action="store_true", help="evaluate no rules or alerts")
    options.add_argument("--warm", type=float, default=330.0, metavar="SECONDS", help="scrape so long before")
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    if not shutil.which("prometheus"):
        print("bench.node.prometheus: prometheus is not installed", file=sys.stderr)
        return 1
    say(f"{given.nodes} nodes, every {given.interval} s, {given.seconds:.0f} s ...")
    found = measure(
        given.nodes, given.interval, given.drop, not given.without_rules, given.warm, given.seconds
    )
    if given.json:
        print(json.dumps(found))
    else:
        print(*(f"{name:20} {figure:12.4g}" for name, figure in found.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
