"""One phase, enter to exit, against what people use instead, in one run.

    python -m bench.trainer.phase [--json]

Each round times every peer in turn, so that a machine that drifts drifts for all; the figure of a peer is the
median over rounds, and the ratio to goodput is the median of the rounds' own ratios. The empty `with` is what the
language itself costs and is part of every figure. Bars: at most 1/4 of prometheus_client's `with h.time()` and
1/20 of an OpenTelemetry span.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from statistics import median
from time import perf_counter

ROUNDS, LOOPS = 31, 4000
BARS = {"prometheus_client with h.time()": 1 / 4, "opentelemetry start_as_current_span": 1 / 20}


class Empty:
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


def peers() -> dict:
    """Context managers (or makers of one) by name; what is not installed is left out."""
    import goodput

    goodput.start(run="bench")
    forward, empty = goodput.phase("forward"), Empty()
    found = {"goodput phase": lambda: forward, "empty with": lambda: empty}
    try:
        from prometheus_client import Histogram

        histogram = Histogram("bench_seconds", "A phase.")
        found["prometheus_client with h.time()"] = histogram.time
    except ImportError:
        pass
    try:
        from opentelemetry.sdk.trace import TracerProvider

        tracer = TracerProvider().get_tracer("bench")
        found["opentelemetry start_as_current_span"] = lambda: tracer.start_as_current_span("phase")
    except ImportError:
        pass
    try:
        import nvtx

        found["nvtx annotate"] = lambda: nvtx.annotate("phase")
    except ImportError:
        pass
    try:
        from torch.profiler import record_function

        found["torch.profiler record_function"] = lambda: record_function("phase")
    except ImportError:
        pass
    return found


def time_one(make, loops: int) -> float:
    """Nanoseconds for one `with make(): pass`."""
    began = perf_counter()
    for _ in range(loops):
        with make():
            pass
    return (perf_counter() - began) / loops * 1e9


def measure() -> dict[str, list[float]]:
    makers = peers()
    figures: dict[str, list[float]] = {name: [] for name in makers}
    for make in makers.values():
        time_one(make, LOOPS)
    for _ in range(ROUNDS):
        for name, make in makers.items():
            figures[name].append(time_one(make, LOOPS if "opentelemetry" not in name else LOOPS // 10))
    return figures


def table(figures: dict[str, list[float]]) -> list[dict]:
    """Per peer the median ns and the median ratio goodput / peer."""
    ours = figures["goodput phase"]
    return [
        {
            "what": name,
            "median_ns": round(median(values), 1),
            "goodput_over_it": round(median(a / b for a, b in zip(ours, values, strict=True)), 4),
            "bar": BARS.get(name),
        }
        for name, values in figures.items()
    ]


def in_a_process(how: str) -> list[dict]:
    """The table measured in a fresh process, with the compiled recorder or the plain one.

    Raises RuntimeError where the compiled one was asked for and is not there.
    """
    with tempfile.TemporaryDirectory() as directory:
        environ = {**os.environ, "GOODPUT_DIR": directory}
        command = [sys.executable, "-m", "bench.trainer.phase", "--measure", how]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=300)
        found = json.loads(done.stdout)
        if found["compiled"] != (how == "compiled"):
            raise RuntimeError(
                "the compiled recorder is not built: install the project where Python's headers are"
            )
        return found["rows"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="example: python -m bench.trainer.phase --json"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--measure", choices=("compiled", "plain"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        if arguments.measure == "plain":
            sys.modules["goodput.sdk.recorder._fast"] = None  # Its import fails, as where it was not built.
        from goodput.sdk.recorder.hot_path import extension

        print(json.dumps({"compiled": extension is not None, "rows": table(measure())}))
        return 0
    results = {"compiled recorder": in_a_process("compiled"), "plain recorder": in_a_process("plain")}
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), **results}, indent=2))
        return 0
    met = True
    for kind, rows in results.items():
        print(
            f"\n{kind}, Python {platform.python_version()}\n  {'one `with`':<40}{'median ns':>10}{'goodput / it':>14}{'bar':>8}"
        )
        for row in rows:
            bar = f"{row['bar']:.2f}" if row["bar"] else ""
            print(f"  {row['what']:<40}{row['median_ns']:>10.0f}{row['goodput_over_it']:>14.3f}{bar:>8}")
            met = met and (
                row["bar"] is None or kind != "compiled recorder" or row["goodput_over_it"] <= row["bar"]
            )
    print(f"\nbars {'met' if met else 'MISSED'} with the compiled recorder")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
