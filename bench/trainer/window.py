"""`goodput.window()` at every step, compared with hand-written windows in the same run.

    python -m bench.trainer.window [--json]

A real loop of half-millisecond steps with eleven phases ("none" included). In each round every peer has its own loop,
in which it receives each step's phase durations (goodput reads them from its page) and computes its figures; its cost
is the time of both. Peers keep the last KEPT steps, as the window does here. Slow peers compute at every SLOWth step
only. The bar: a call costs at most 1/20 of the deques with numpy.percentile.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import tempfile
from collections import deque
from time import perf_counter_ns

PHASES = (
    *("loader", "h2d", "forward", "backward", "optimizer", "communication"),
    *("checkpoint", "evaluation", "compile", "augment"),
)
OURS = "goodput.window()"
SECONDS, STEPS, ROUNDS, KEPT = 0.3, 1500, 5, 600
SLOW = 20  # A slow peer has its turn at every SLOWth step.
BARS = {"deque + numpy.percentile": 1 / 20}


class Means:
    """Running means, as a meter class keeps them: a sum and a count per phase, no quantile."""

    def __init__(self):
        self.sums, self.count = dict.fromkeys(("step", *PHASES), 0.0), 0

    def add(self, lengths: dict[str, float]) -> None:
        self.count += 1
        for name, seconds in lengths.items():
            self.sums[name] += seconds

    def figures(self) -> dict[str, float]:
        return {name: total / self.count for name, total in self.sums.items()}


class Deques:
    """The last steps in a deque per phase, and a function that makes quantiles of each."""

    def __init__(self, quantiles):
        self.kept, self.quantiles = {name: deque(maxlen=KEPT) for name in ("step", *PHASES)}, quantiles

    def add(self, lengths: dict[str, float]) -> None:
        for name, seconds in lengths.items():
            self.kept[name].append(seconds)

    def figures(self) -> dict:
        return {name: self.quantiles(seconds) for name, seconds in self.kept.items() if len(seconds) > 1}


def peers() -> dict:
    """Peers by name; what is not installed is left out."""
    found = {"running means": Means()}
    try:
        import numpy

        found["deque + numpy.percentile"] = Deques(lambda kept: numpy.percentile(kept, (50, 95, 99)))
    except ImportError:
        pass
    found["deque + statistics.quantiles"] = Deques(lambda kept: statistics.quantiles(kept, n=100))
    return found


def one_step(phases: list) -> None:
    """A step of about half a millisecond in ten phases."""
    import goodput

    with goodput.step(samples=8):
        for phase in phases:
            with phase:
                until = perf_counter_ns() + random.randrange(20_000, 70_000)
                while perf_counter_ns() < until:
                    pass


def some_lengths() -> dict[str, float]:
    """Some step's lengths, for the peers: what they are does not matter to their cost, that they differ does."""
    lengths = {name: random.uniform(20e-6, 70e-6) for name in PHASES}
    return {"step": sum(lengths.values()), **lengths}


class Ours:
    """goodput.window(), which needs no other call; with `scalars` also its 54 values."""

    def __init__(self, scalars: bool):
        import goodput

        self.window, self.scalars, self.last = goodput.window, scalars, None

    def add(self, lengths: dict[str, float]) -> None:
        pass

    def figures(self) -> None:
        self.last = self.window(SECONDS)
        if self.scalars:
            self.last.scalars()


def block(peer, phases: list, every: int) -> list[int]:
    """Nanoseconds of a peer at each step at which it was asked, in the second half of a loop of its own."""
    spent = []
    for number in range(STEPS):
        one_step(phases)
        lengths = some_lengths()
        began = perf_counter_ns()
        peer.add(lengths)
        if number % every == 0:
            peer.figures()
            spent.append(perf_counter_ns() - began)
    return spent[len(spent) // 2 :]


def measure() -> dict[str, list[int]]:
    """Nanoseconds of each peer per step asked, of all rounds."""
    import goodput

    with tempfile.TemporaryDirectory() as directory:
        goodput.start(run="bench", directory=directory)
        phases = [goodput.phase(name) for name in PHASES]
        found = {OURS: Ours(False), f"{OURS}.scalars()": Ours(True), **peers()}
        spent = {name: [] for name in found}
        for _ in range(ROUNDS):
            for name, peer in found.items():
                fast = isinstance(peer, Ours | Means)
                spent[name] += block(peer, phases, 1 if fast else SLOW)
                if isinstance(peer, Ours) and peer.last.coverage != 1:
                    raise RuntimeError(f"this is not the steady state that was to be measured: {peer.last}")
        goodput.stop()
    return spent


def table(spent: dict[str, list[int]]) -> list[dict]:
    ours = statistics.median(spent[OURS])
    return [
        {
            "what": name,
            "median_us": round(statistics.median(times) / 1000, 2),
            "p99_us": round(sorted(times)[len(times) * 99 // 100] / 1000, 2),
            "goodput_over_it": round(ours / statistics.median(times), 4),
            "bar": BARS.get(name),
        }
        for name, times in spent.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="example: python -m bench.trainer.window --json"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    rows = table(measure())
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), "rows": rows}, indent=2))
        return 0
    print(
        f"Python {platform.python_version()}\n  {'at every step':<34}{'median us':>10}{'p99 us':>9}{'goodput / it':>14}"
    )
    for row in rows:
        print(
            f"  {row['what']:<34}{row['median_us']:>10.1f}{row['p99_us']:>9.1f}{row['goodput_over_it']:>14.4f}"
        )
    met = all(row["bar"] is None or row["goodput_over_it"] <= row["bar"] for row in rows)
    print(f"\nbar {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
