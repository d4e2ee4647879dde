"""Detection score: hidden faults in real DistributedDataParallel trainings over gloo, and innocent ones, by seed.

    python -m bench.detection_score [--seeds 50] [--first 1] [--write docs/detection-score.md] [--json]

Each seed gives one training with a fault and one without: ranks, model shape, batch, steps, and of the fault its rank, place
and size. A fault is time that one rank spends there in each step, by sleeping, so that the others wait for it. After
the training, the account of its rank pages is asked which rank is slow and in which phase; nothing else of the run is
known to it. Of a training without a fault nobody may be named. The ranks share this machine's cores, so the score
is that of a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

PLACES = ("loader", "forward", "backward", "optimizer", "communication", "outside")
# Outside any phase there is no phase to name, but the state.
STATES = {"outside": "unattributed"}


@dataclass(frozen=True)
class Case:
    """One training. `seconds` is what the fault adds to each step of `culprit`; None for one without a fault."""

    seed: int
    place: str | None
    culprit: int | None
    seconds: float
    world: int
    width: int
    depth: int
    batch: int
    steps: int
    buckets_mb: float
    accumulation: int


def case_of(seed: int, has_fault: bool) -> Case:
    chosen = random.Random(f"detection {seed} {has_fault}")
    world = chosen.choice((2, 3, 4))
    return Case(
        seed=seed,
        place=PLACES[seed % len(PLACES)] if has_fault else None,
        culprit=chosen.randrange(world) if has_fault else None,
        seconds=chosen.choice((0.004, 0.008, 0.016, 0.032)) if has_fault else 0.0,
        world=world,
        width=chosen.choice((64, 128, 256)),
        depth=chosen.choice((2, 4, 8)),
        batch=chosen.choice((16, 64)),
        steps=chosen.choice((60, 90)),
        buckets_mb=chosen.choice((0.05, 25.0)),
        accumulation=chosen.choice((1, 1, 2)),
    )


# -- a rank


def batches_of(case: Case, late: Callable[[str], None]):
    """A DataLoader of the case; `late("loader")` is called once a batch."""
    import torch

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return case.batch * case.steps * case.accumulation

        def __getitem__(self, at):
            if at % case.batch == 0:
                late("loader")
            return torch.full((case.width,), at % 7 / 7.0)

    return torch.utils.data.DataLoader(Data(), batch_size=case.batch)


def train(case: Case, rank: int, directory: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    import goodput.auto

    torch.set_num_threads(1)
    torch.manual_seed(case.seed)
    goodput.start(run="score", rank=rank, world_size=case.world, directory=str(directory / "pages"))
    store = dist.FileStore(str(directory / "store"), case.world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.world)

    def late(place: str) -> None:
        if place == case.place and rank == case.culprit:
            time.sleep(case.seconds)

    class LateBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return values.view_as(values)

        @staticmethod
        def backward(ctx, gradient):
            late("backward")
            return gradient

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(case.width, case.width) for _ in range(case.depth))

        def forward(self, values):
            late("forward")
            for at, layer in enumerate(self.layers):
                values = torch.relu(layer(values))
                values = LateBackward.apply(values) if at == 0 else values
            return values.square().mean()

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            late("optimizer")
            return super().step(closure)

    def hook(state, bucket):
        late("communication")
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / case.world)

    model = nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=case.buckets_mb)
    if case.place == "communication":
        model.register_comm_hook(None, hook)
    optimizer = Optimizer(model.parameters(), 0.01)
    for micro, batch in enumerate(batches_of(case, late), 1):
        if micro % case.accumulation == 0:
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            late("outside")
        else:
            with model.no_sync():
                model(batch).backward()
    dist.barrier()


# -- the score


def run(case: Case) -> dict:
    """What was planted, and what the account says."""
    from goodput.account import compute, document
    from goodput.causes import explain
    from goodput.sdk.reports.local_accounts import runs_in

    directory = Path(tempfile.mkdtemp(prefix="goodput-score-"))
    began, pids = time.monotonic(), []
    try:
        for rank in range(case.world):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    train(case, rank, directory)
                    status = 0
                finally:
                    sys.stdout.flush()
                    os._exit(status)
            pids.append(pid)
        failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
        runs, errors = runs_in(str(directory / "pages"), time.perf_counter_ns())
        account = compute(runs[0], time.time_ns())
        straggler = document(account, explain(account))["straggler"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    ranked = [one["rank"] for one in straggler["shares"]]
    return {
        **asdict(case),
        "named": straggler["culprit"],
        "state": straggler["because"],
        "phase": straggler["because_phase"],
        "ranked": ranked[:2],
        "slowdown": straggler["slowdown"],
        "failed": failed + len(errors),
        "wall_seconds": time.monotonic() - began,
    }


def is_right(row: dict) -> tuple[bool, bool]:
    """Whether the rank and the phase are right; of a training without a fault, that nobody is named."""
    if row["place"] is None:
        return row["named"] is None, True
    is_named = row["named"] == row["culprit"]
    if row["place"] in STATES:
        return is_named, is_named and row["state"] == STATES[row["place"]]
    return is_named, is_named and row["phase"] == row["place"]


def markdown(rows: list[dict]) -> str:
    faults = [row for row in rows if row["place"] is not None]
    innocent = [row for row in rows if row["place"] is None]
    ranks = sum(is_right(row)[0] for row in faults)
    phases = sum(is_right(row)[1] for row in faults)
    first_two = sum(row["culprit"] in row["ranked"] or is_right(row)[0] for row in faults)
    quiet = sum(is_right(row)[0] for row in innocent)
    lines = [
        "# Detection score",
        "",
        "Written by `make detection-score` (bench/detection_score.py): real DistributedDataParallel trainings over gloo, "
        "generated by seed, each with a hidden fault in every step of one rank, and as many without one. The account of "
        "their rank pages is asked for the slow rank and its phase.",
        "",
        "| | of | |",
        "|---|---|---|",
        f"| the rank is named | {len(faults)} | {ranks} |",
        f"| the rank is named, or among the first two that others waited for | {len(faults)} | {first_two} |",
        f"| its phase is named, too | {len(faults)} | {phases} |",
        f"| nobody is named in a training without a fault | {len(innocent)} | {quiet} |",
        "",
        "| place | faults | rank | phase |",
        "|---|---|---|---|",
    ]
    count, named, phased = Counter(), Counter(), Counter()
    for row in faults:
        count[row["place"]] += 1
        named[row["place"]] += is_right(row)[0]
        phased[row["place"]] += is_right(row)[1]
    lines += [f"| {place} | {count[place]} | {named[place]} | {phased[place]} |" for place in PLACES]
    misses = [row for row in rows if not all(is_right(row))]
    lines += ["", "## Misses", ""]
    if not misses:
        lines.append("None.")
    else:
        lines += [
            "| seed | planted | size | ranks | named | phase | slowdown |",
            "|---|---|---|---|---|---|---|",
        ]
    for row in misses:
        planted = "nothing" if row["place"] is None else f"rank {row['culprit']}, {row['place']}"
        slowdown = "" if row["slowdown"] is None else f"{row['slowdown']:.2f}"
        lines.append(
            f"| {row['seed']} | {planted} | {1e3 * row['seconds']:.0f} ms | {row['world']} | {row['named']} | "
            f"{row['phase']} | {slowdown} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one line a training, as it ends")
    options = parser.parse_args()
    import torch.distributed  # noqa: F401 - once, for the ranks that are forked from here

    rows = []
    for seed in range(options.first, options.first + options.seeds):
        for has_fault in (True, False):
            rows.append(run(case_of(seed, has_fault)))
            if options.json:
                print(json.dumps(rows[-1]), flush=True)
    if options.write:
        Path(options.write).write_text(markdown(rows))
    elif not options.json:
        print(markdown(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
