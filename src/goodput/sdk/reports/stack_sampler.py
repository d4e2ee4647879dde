"""A process beside `goodput run` that samples where ranks are while they are in no phase, with py-spy.

    python -m goodput.sdk.reports.stack_sampler DIRECTORY PID

It follows the pages of PID and its descendants, and ends with PID. A rank that spends IDLE_SHARE_MIN of its time in no
phase is sampled from outside, without being paused, RATE times a second for BURST_SECONDS, at most BURSTS_MAX times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter

from goodput.defaults import ESTIMATED_LOADER
from goodput.rank_page import idle_stacks, page
from goodput.rank_page.reader import Reader, Snapshot, process_start_ticks

POLL_SECONDS, PAUSE_SECONDS = 0.5, 60.0
RATE, BURST_SECONDS, BURSTS_MAX, RANKS_MAX = 25, 2, 6, 8
STEPS_MIN, IDLE_SHARE_MIN = 5, 0.02
PARENTS_MAX = 32
# Phases that look like no phase in a stack: a burst with more of them is not used.
BUILT_IN = (*page.PHASES, ESTIMATED_LOADER)
OTHER_SHARE_MAX = 0.1


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


def shares(before: Snapshot, after: Snapshot) -> tuple[float, float]:
    """Shares of the time between two snapshots in no phase, and in phases that stacks do not show."""
    spent = dict(zip(after.phases, after.totals, strict=False))
    for name, ns in zip(before.phases, before.totals, strict=False):
        spent[name] -= ns
    total = sum(spent.values())
    idle = spent["none"] + spent.get(ESTIMATED_LOADER, 0)
    other = sum(ns for name, ns in spent.items() if name not in BUILT_IN)
    other += sum(spent[name] for name in ("checkpoint", "restore", "evaluation", "compile"))
    return (idle / total, other / total) if total > 0 else (0.0, 0.0)


class Sampler:
    """The ranks of one command, each with its samples so far."""

    def __init__(self, directory: str, root: int, command: str | None):
        self.directory, self.root, self.command = directory, root, command
        self.first: dict[str, Snapshot] = {}
        self.counts: dict[str, Counter[str]] = {}
        self.bursts: Counter[str] = Counter()
        self.due: dict[str, float] = {}
        self.stopped = False

    def poll(self) -> None:
        for name in sorted(os.listdir(self.directory)):
            path = os.path.join(self.directory, name)
            if name.endswith(page.SUFFIX) and not name.startswith(".") and not self.stopped:
                try:
                    with Reader(path) as reader:
                        self._look_at(path, reader)
                except (page.PageError, OSError):
                    continue

    def _look_at(self, path: str, reader: Reader) -> None:
        snapshot = reader.snapshot()
        known = path in self.first or len(self.first) < RANKS_MAX
        if not known or snapshot.ended or not reader.alive() or snapshot.steps_done < STEPS_MIN:
            return
        if not is_descendant(snapshot.identity["pid"], self.root):
            return
        first = self.first.setdefault(path, snapshot)
        if self.bursts[path] >= BURSTS_MAX or time.monotonic() < self.due.get(path, 0.0):
            return
        if shares(first, snapshot)[0] >= IDLE_SHARE_MIN:
            self._sample(path, reader, snapshot)

    def _sample(self, path: str, reader: Reader, before: Snapshot) -> None:
        self.bursts[path] += 1
        self.due[path] = time.monotonic() + PAUSE_SECONDS
        raw, reason = record(self.command, before.identity["pid"])
        if reason:
            self.stopped = True
        elif shares(before, reader.snapshot())[1] > OTHER_SHARE_MAX:
            return
        counts = self.counts.setdefault(path, Counter())
        counts.update(idle_stacks.places(raw))
        idle_stacks.write(path, counts, reason)


def record(command: str | None, pid: int) -> tuple[str, str]:
    """Raw stacks of one burst, and the reason why there are none."""
    if command is None:
        return "", "py-spy is not installed: pip install 'goodput-telemetry[stacks]'"
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "stacks")
        call = [command, "record", "--pid", str(pid), "--rate", str(RATE), "--duration", str(BURST_SECONDS)]
        call += ["--nonblocking", "--idle", "--threads", "--format", "raw", "--output", out]
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", f"py-spy: {error}"
        if done.returncode or not os.path.exists(out):
            return "", f"py-spy: {' '.join(done.stderr.split()) or f'exit status {done.returncode}'}"
        with open(out) as file:
            return file.read(), ""


def main(directory: str, root: int) -> None:
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    command = beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
    sampler, ticks = Sampler(directory, root, command), process_start_ticks(root)
    while ticks is not None and process_start_ticks(root) == ticks and not sampler.stopped:
        time.sleep(POLL_SECONDS)
        try:
            sampler.poll()
        except OSError:
            continue  # The directory is made by the first rank.


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
