"""A training of two ranks for the tests of its progress, started as by a launcher.

    training.py DIRECTORY TOTAL_STEPS

It ends after TOTAL_STEPS, or where DIRECTORY has a file `stop`; rank 0 prints its threads and sockets at the end.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import goodput


def batches(folder: Path, steps: int):
    for step in range(steps):
        if (folder / "stop").exists():
            return
        time.sleep(0.005 if os.environ["RANK"] == "0" else 0.015)
        yield step


def sockets() -> int:
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # That of the folder is closed.
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(name.startswith("socket:") for name in names)


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    if "RANK" not in os.environ:
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
            )
            for rank in range(2)
        ]
        sys.exit(max(one.wait() for one in ranks))
    goodput.progress(steps)
    for step in goodput.steps(batches(folder, steps)):
        with goodput.phase("forward"):
            time.sleep(0.01)
        if step % 20 == 0 and os.environ["RANK"] == "0":
            print(f"loss of step {step} is 0.5", flush=True)
    if os.environ["RANK"] == "0":
        print(f"tasks={len(os.listdir('/proc/self/task'))} sockets={sockets()}", flush=True)


if __name__ == "__main__":
    main()
