"""Runs programs without goodput, each process of one in a fork of a process that has imported PyTorch.

Each line of standard input has a program's path, the path of its result, its ranks and how often it is started again
after it failed, separated by tabs; the answer is the exit status of the last start. Ranks get what torchrun sets.
"""

import os
import runpy
import socket
import sys

import torch._dynamo  # noqa: F401  An optimizer imports it, which takes as long as PyTorch.


def start(script: str, written: str, environment: dict[str, str]) -> int:
    """Start a process; its id."""
    child = os.fork()
    if child:
        return child
    os.environ.update(environment)
    sys.argv = [script, written]
    os.dup2(2, 1)
    os.chdir(os.path.dirname(written))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    runpy.run_path(script, run_name="__main__")
    sys.exit()


def run(script: str, written: str, ranks: int, attempt: int) -> int:
    """Run all ranks; the exit status of one that failed, else 0."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        launched = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    launched.update(WORLD_SIZE=str(ranks), TORCHELASTIC_RESTART_COUNT=str(attempt))
    children = [start(script, written, {**launched, "RANK": str(rank)}) for rank in range(ranks)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return next((status for status in statuses if status), 0)


def main() -> None:
    for line in sys.stdin:
        script, written, ranks, restarts = line.rstrip("\n").split("\t")
        for attempt in range(int(restarts) + 1):
            status = run(script, written, int(ranks), attempt)
            if not status:
                break
        print(status, flush=True)


if __name__ == "__main__":
    main()
