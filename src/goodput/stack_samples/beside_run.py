"""The process beside `goodput run` that samples the ranks of one command.

    python -m goodput.stack_samples.beside_run DIRECTORY PID

It follows the pages of PID and its descendants, and ends with PID.
"""

from __future__ import annotations

import os
import sys
import time

from goodput.rank_page import page
from goodput.rank_page.page import process_start_ticks
from goodput.rank_page.reader import Reader, Snapshot
from goodput.stack_samples.py_spy import Recorder, find_py_spy
from goodput.stack_samples.sampler import StackSampler

POLL_SECONDS = 0.5
PARENTS_MAX = 32


def is_descendant(pid: int, root: int) -> bool:
    """Whether `pid` is `root` or was started by it, as far as its parents live."""
    for _ in range(PARENTS_MAX):
        if pid == root:
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def living_ranks(directory: str, root: int) -> dict[str, Snapshot]:
    """Snapshots of the living ranks of a command, by page. Raises OSError without a directory."""
    found = {}
    for name in sorted(os.listdir(directory)):
        if not name.endswith(page.SUFFIX) or name.startswith("."):
            continue
        path = os.path.join(directory, name)
        try:
            with Reader(path) as reader:
                pid = reader.identity["pid"]
                if not reader.alive() or reader.process_problem(pid) or not is_descendant(pid, root):
                    continue
                snapshot = reader.snapshot(page.NS_MAX, page.NS_MAX)
        except (page.PageError, OSError):
            continue
        if not snapshot.ended:
            found[path] = snapshot
    return found


def poll(sampler: StackSampler, directory: str, root: int) -> None:
    """Poll the ranks once, and sample one of them if it is due. Raises OSError without a directory."""
    ranks = living_ranks(directory, root)
    path = sampler.choose(ranks.items())
    if path is not None:
        pid = ranks[path].identity["pid"]
        with Reader(path) as reader:
            sampler.sample(path, pid, lambda: reader.process_problem(pid))


def main(directory: str, root: int) -> None:
    sampler, ticks = StackSampler(Recorder(find_py_spy())), process_start_ticks(root)
    while ticks is not None and process_start_ticks(root) == ticks:
        time.sleep(POLL_SECONDS)
        try:
            poll(sampler, directory, root)
        except (OSError, page.PageError):
            continue  # The directory is made by the first rank; a page may be gone.


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
