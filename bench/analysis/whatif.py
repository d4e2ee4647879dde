"""What `goodput whatif` predicts for real trainings with planted delays, against steps without them.

    PYTHONPATH=tests python -m bench.analysis.whatif [--repeat N] [--ranks 2,4] [--json]

Each training runs on gloo with DistributedDataParallel; a slow loader on all ranks, on one rank, slow compute on one rank
and slow checkpoints on rank 0 take turns with steps without them, so that both see the same machine. Work is sleep, longer
with more ranks than cores; of the turns of each kind the half counts in which ranks waited least for cores. "Without a
core" is that wait of a step with the delay and of one without, all ranks together. The bars: every prediction within 2 % of
the recorded time, and 90 % of the real times within the 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from support.whatif.trainings import Outcome, outcomes

LENGTH, ROUNDS = 12, 14
FACTORS = {2: 1.5}  # of the length of steps: more ranks than cores disturb each other
FACTOR_MANY = 2.5
ERROR_MAX, COVERED_MIN = 0.02, 0.9


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=4, help="trainings of each size (default: %(default)s)")
    parser.add_argument("--ranks", default="2,4", help="sizes (default: %(default)s)")
    parser.add_argument(
        "--factor", type=float, help="of the length of steps, 50 ms, and of the delays, 40 ms"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[tuple[int, str], list[Outcome]] = {}
    for ranks in map(int, arguments.ranks.split(",")):
        for _ in range(arguments.repeat):
            with tempfile.TemporaryDirectory() as directory:
                factor = arguments.factor or FACTORS.get(ranks, FACTOR_MANY)
                for name, one in outcomes(ranks, LENGTH, ROUNDS, Path(directory), factor=factor).items():
                    found.setdefault((ranks, name), []).append(one)
    every = [one for some in found.values() for one in some]
    covered = sum(one.is_covered for one in every) / len(every)
    worst = max(abs(one.error) for one in every)
    if arguments.json:
        print(json.dumps({f"{name}, {ranks} ranks": some for (ranks, name), some in found.items()}))
    else:
        print(
            "| ranks | delay | recorded ms | predicted ms | really ms | errors | without a core ms | in the interval |"
        )
        print("|--:|---|--:|--:|--:|--:|--:|--:|")
        for (ranks, name), some in found.items():
            print(f"| {ranks} | {name} | {_row(some)} |")
        print(f"\nlargest error {100 * worst:.2f} %, in the interval {100 * covered:.0f} % of {len(every)}")
    return int(worst > ERROR_MAX or covered < COVERED_MIN)


def _row(some: list[Outcome]) -> str:
    """Means over trainings, and the error of each."""
    means = (
        1e3 * sum(getattr(one, name) for one in some) / len(some)
        for name in ("recorded", "predicted", "real")
    )
    errors = ", ".join(f"{100 * one.error:+.1f}" for one in some)
    waited = 1e3 * sum(one.core_wait - one.core_wait_without for one in some) / len(some)
    without = 1e3 * sum(one.core_wait_without for one in some) / len(some)
    shown = " | ".join(f"{mean:.1f}" for mean in means)
    covered = f"{sum(one.is_covered for one in some)} of {len(some)}"
    return f"{shown} | {errors} % | {waited:.1f}, {without:.1f} | {covered}"


if __name__ == "__main__":
    raise SystemExit(main())
