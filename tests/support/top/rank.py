"""One rank of a run for the tests of `goodput top`: a real page, a real all-reduce, sleeps for work.

    rank.py DIRECTORY TOTAL_STEPS    rank, world size, run and attempt come from the environment

Files in DIRECTORY steer it: rank 1's loader is slow; while `stuck` exists rank 1 stays in backward; `stop` ends it.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import goodput
from goodput.demo.allreduce import ProcessGroup


def batches(folder: Path, rank: int, steps: int):
    for _ in range(steps):
        if (folder / "stop").exists():
            return
        time.sleep(0.02 if rank == 1 else 0.002)
        yield None


def wait_while(sign: Path) -> None:
    while sign.exists():
        time.sleep(0.02)


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    goodput.start(device="test", total_steps=steps)
    group = ProcessGroup(rank, world_size, folder, 300.0)
    flag = np.zeros(1, np.float32)
    for _ in goodput.steps(batches(folder, rank, steps), samples=8):
        with goodput.phase("forward"):
            time.sleep(0.008)
        with goodput.phase("backward"):
            time.sleep(0.012)
            if rank == 1:
                wait_while(folder / "stuck")
        with goodput.phase("communication"):
            group.mean(flag)
        with goodput.phase("optimizer"):
            time.sleep(0.002)


if __name__ == "__main__":
    try:
        main()
    except OSError:  # Another rank ended first.
        goodput.stop("finished" if (Path(sys.argv[1]) / "stop").exists() else "failed")
