"""One rank of a run that hangs on command: real processes, a real all-reduce.

    hanging_rank.py DIRECTORY    rank, world size, run and attempt come from the environment

Files in DIRECTORY steer it: while `stuck-loader-R` exists rank R waits in its loader, while `stuck-code-R` exists
in a phase of the user's; while `deaf` exists all wait in communication without noticing who died.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import goodput
from goodput.demo.allreduce import ProcessGroup


def wait_for_a_shard(sign: Path) -> None:
    while sign.exists():
        time.sleep(0.05)


def batches(folder: Path, rank: int):
    while True:
        wait_for_a_shard(folder / f"stuck-loader-{rank}")
        yield None


def main() -> None:
    folder, rank, world_size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    goodput.start(device="test")
    group = ProcessGroup(rank, world_size, folder, 300.0)
    flag = np.zeros(1, np.float32)
    for _ in goodput.steps(batches(folder, rank)):
        with goodput.phase("forward"):
            time.sleep(0.02)
        with goodput.phase("tokenize"):
            while (folder / f"stuck-code-{rank}").exists():
                time.sleep(0.05)
        with goodput.phase("communication"):
            while (folder / "deaf").exists():
                time.sleep(0.05)
            group.mean(flag)


if __name__ == "__main__":
    try:
        main()
    except OSError:  # Another rank ended first.
        goodput.stop("failed")
