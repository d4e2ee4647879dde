"""A rank of a run that spends nearly all its time in one phase, by real time.

hardware_rank.py DIRECTORY PHASE GPU_UUID    rank, world size and run come from the environment

It ends when DIRECTORY has a file `stop`.
"""

import sys
import time
from pathlib import Path

import goodput

STEP_SECONDS = 0.1


def batches(folder: Path, seconds: float):
    while not (folder / "stop").exists():
        time.sleep(seconds)
        yield None


def main() -> None:
    folder, phase, uuid = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    goodput.start(device="test", device_uuid=uuid)
    for _ in goodput.steps(batches(folder, STEP_SECONDS if phase == "loader" else 0.0)):
        if phase != "loader":
            with goodput.phase(phase):
                time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
