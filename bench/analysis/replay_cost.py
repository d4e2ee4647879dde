"""What one replay of a large run costs the aggregator: CPU, memory, and for how long it holds the interpreter.

    PYTHONPATH=tests python -m bench.analysis.replay_cost [--ranks N] [--repeat N] [--json]

A run of so many ranks is simulated and pushed into an aggregator with SQLite. Then its gains are computed as for the API,
in a thread, while another one wakes up each millisecond: how much CPU time the replay takes while that one cannot go on is
what a push would have to wait. Of each replay the longest is taken, and of all replays the shortest of these, since on a busy
machine either thread may lose its core at any time; a hold of the interpreter is in all. Beside it the same of a thread that
only counts: what the interpreter lets any thread do (`sys.getswitchinterval`). The bar: 100 ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from support.aggregator.reports import body_of
from support.aggregator.serve_process import serving

from goodput.aggregator.accounts import replays
from goodput.aggregator.accounts.replays import Replays
from goodput.aggregator.api.app import create_app
from goodput.simulate.reports import acknowledge
from goodput.simulate.scenario import AttemptPlan, RunFault, RunPlan, Scenario, Workload
from goodput.simulate.world import World

SECONDS, TICKS, GPUS, REPORTS = 150.0, 5, 8, 64
HELD_SECONDS_MAX = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=10_000, help="a multiple of 8 (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="replays (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), given.ranks, given.repeat)
    print(json.dumps(found, indent=1) if given.json else text_of(found))
    return int(found["held"] > HELD_SECONDS_MAX)


def measured(folder: Path, ranks: int, repeat: int) -> dict:
    """Medians over the replays of CPU and wall seconds, the highest memory and lateness of all."""
    asked: list[tuple] = []

    def noted(self, account, past, revision):
        asked.append((self._history.ledger, past(), account))

    with serving(create_app(f"sqlite:///{folder}/ledger.db")) as client:
        push(client, ranks)
        Replays.request = noted  # type: ignore[method-assign]
        client.get("/api/v1/runs/large", timeout=600).raise_for_status()
        ledger, past, account = asked[0]
        costs = [
            watched(lambda: replays._gains_of(ledger, past, account, lambda: None)) for _ in range(repeat)
        ]
    counting = [watched(lambda: count(costs[0]["wall"])) for _ in range(repeat)]
    middle = {name: sorted(one[name] for one in costs)[repeat // 2] for name in ("cpu", "wall")}
    return {
        "ranks": len(account.ranks),
        **middle,
        "memory_mb": max(one["memory_mb"] for one in costs),
        "held": min(one["held"] for one in costs),
        "held_counting": min(one["held"] for one in counting),
    }


def push(client, ranks: int) -> None:
    """A run with a step a second and one slow loader."""
    places = [(f"n{rank // GPUS}", rank % GPUS) for rank in range(ranks)]
    slow = RunFault("loader", 0.0, SECONDS, 1.5, rank=2)
    attempts = [AttemptPlan(0.0, SECONDS, places, "finished", startup=1.0, restore=0.0, compile=0.0)]
    plan = RunPlan("large", attempts, Workload(step=1), 1, [slow], thinned=False)
    nodes = dict.fromkeys((node for node, _ in places), GPUS)
    world = World(Scenario(nodes, [plan]), [SECONDS * at / (TICKS - 1) for at in range(TICKS)], ())  # type: ignore[arg-type]
    for tick, now in enumerate(world.times):
        world.advance(tick)
        found = [one for run in world.current(now) for one in world.reports(run, now)]
        for attempt, rank, _ in found:
            acknowledge(attempt, rank)
        for at in range(0, len(found), REPORTS):
            reports = [report for _, _, report in found[at : at + REPORTS]]
            body = body_of(*reports, node=reports[0].identity.host)
            client.post("/api/v1/ingest", content=body, timeout=600).raise_for_status()
        print(f"pushed {now:.0f} s of {len(found)} ranks", file=sys.stderr)


def watched(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of CPU and wall of `work` in a thread, the growth of the highest memory, and how long this one is held up."""
    cost: dict[str, float] = {}

    def run() -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        work()
        cost["cpu"], cost["wall"] = time.thread_time() - cpu, time.perf_counter() - wall
        ended.wait()  # Its clock can be read as long as it lives.

    Path("/proc/self/clear_refs").write_text("5")
    before = memory_mb("VmRSS")
    thread, held, ended = threading.Thread(target=run), [0.0], threading.Event()
    thread.start()
    while "wall" not in cost and thread.ident is not None:
        clock = time.pthread_getcpuclockid(thread.ident)
        at, asleep = time.clock_gettime(clock), time.perf_counter()
        time.sleep(0.001)
        if time.perf_counter() - asleep > 0.002 and "wall" not in cost:
            held.append(time.clock_gettime(clock) - at)
    ended.set()
    thread.join()
    return {
        **cost,
        "memory_mb": memory_mb("VmHWM") - before,
        "held": max(held),
    }


def memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3


def count(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def text_of(found: dict) -> str:
    return (
        f"{found['ranks']:,} ranks: {found['cpu']:.2f} s of CPU, {found['wall']:.2f} s, {found['memory_mb']:.0f} MB more\n"
        f"it holds the interpreter for {1e3 * found['held']:.1f} ms at most, "
        f"a thread that only counts for {1e3 * found['held_counting']:.1f} ms"
    )


if __name__ == "__main__":
    raise SystemExit(main())
