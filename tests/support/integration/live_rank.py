"""One rank of a live run for the integration tests: real processes, a real all-reduce, sleeps for work.

    live_rank.py DIRECTORY    rank, world size, run and attempt come from the environment

Files in DIRECTORY steer it: while `slow` exists rank 1's loader takes twenty times as long, `stop` ends the run.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import goodput
from goodput.demo.allreduce import ProcessGroup


def batches(folder: Path, rank: int):
    while not (folder / "stop").exists():
        time.sleep(0.08 if rank == 1 and (folder / "slow").exists() else 0.004)
        yield None


def main() -> None:
    folder = Path(sys.argv[1])
    rank, world_size, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "GOODPUT_ATTEMPT"))
    goodput.start(device="test", flops_per_step=1e9, peak_flops_per_second=1e12, gpu_hour_cost=2.0)
    meeting = folder / f"group-{attempt}"
    meeting.mkdir(exist_ok=True)
    group = ProcessGroup(rank, world_size, meeting, 60.0)
    flag = np.zeros(1, np.float32)
    with goodput.phase("restore"):
        time.sleep(0.01)
    if attempt > 1:
        goodput.resumed(int((folder / "checkpoint").read_text()))
    step = int((folder / "checkpoint").read_text()) if attempt > 1 else -1
    for _ in goodput.steps(batches(folder, rank), samples=8):
        step += 1
        with goodput.phase("h2d"):
            time.sleep(0.001)
        with goodput.phase("forward"):
            time.sleep(0.008)
        with goodput.phase("backward"):
            time.sleep(0.012)
        with goodput.phase("communication"):
            group.mean(flag)
        with goodput.phase("optimizer"):
            time.sleep(0.003)
        if step % 40 == 39 and rank == 0:
            with goodput.checkpoint(step):
                (folder / "checkpoint").write_text(str(step))
                time.sleep(0.01)
        with goodput.phase("augment", state="loader"):
            pass


if __name__ == "__main__":
    try:
        main()
    except OSError:  # The other rank ended first.
        goodput.stop("finished" if (Path(sys.argv[1]) / "stop").exists() else "failed")
