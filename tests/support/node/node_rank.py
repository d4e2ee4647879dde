"""A rank for the tests: writes a page as the SDK does, in this process or in one that can be killed.

In this process the owner's lock cannot be seen (POSIX locks are invisible to their holder), so liveness comes
from a fixture procfs; `Process` is the same over a pipe, with a lock that the agent sees and a pid to kill.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from support.paths import PYTHONPATH

from goodput.histograms.histogram import bin_of_ns
from goodput.rank_page import page

SECOND = 1_000_000_000
START_UNIX_NS, START_MONO_NS = 1_700_000_000 * SECOND, 5_000 * SECOND
PID, TICKS = 4242, 777


def identity(**given) -> dict:
    return {
        "run": "r1", "rank": 0, "world_size": 16, "attempt": 1, "host": "n0", "pid": PID,
        "pid_start_ticks": TICKS, "devices": 1, "stage": None, "group": "dp0", "device": "NVIDIA H100 80GB HBM3",
        "device_uuid": "GPU-1", "start_unix_ns": START_UNIX_NS, "start_mono_ns": START_MONO_NS, **given,
    }  # fmt: skip


class Rank:
    """Time moves only by what is charged: `now_ns` starts at the page's start."""

    def __init__(self, directory, **given):
        self.identity = identity(**given)
        self.writer = page.Writer(str(directory), self.identity)
        self.path = self.writer.path
        self.words = self.writer.words
        self.now_ns = self.identity["start_mono_ns"]
        self.names = list(page.PHASES)
        self.steps = self.samples = 0
        self.next = 0

    def spend(self, phases: dict) -> None:
        """Charge ns to phases, one after the other."""
        for name, ns in phases.items():
            slot = self.names.index(name)
            self.now_ns += ns
            self.words[page.W_TOTALS + slot] += ns
            if slot:
                self.words[page.W_HISTOGRAMS + slot * page.HISTOGRAM_WORDS + bin_of_ns(ns)] += 1
        self.words[page.W_LAST] = self.now_ns

    def outside(self, phases: dict) -> None:
        """Charge ns outside any step."""
        self.spend(phases)
        for name, ns in phases.items():
            self.words[page.W_OUTSIDE + self.names.index(name)] += ns

    def step(self, phases: dict, step=None, samples: int = 0) -> None:
        """One step of these phases."""
        words, start_ns = self.words, self.now_ns
        self.next = self.next if step is None else step
        self.spend(phases)
        self.steps, self.samples = self.steps + 1, self.samples + samples
        at = page.W_STEP_RING + (self.steps - 1) % page.STEP_RING * page.STEP_WORDS
        words[at + page.R_SEAL] = 0
        words[at + page.R_STEP] = self.next + page.STEP_BIAS
        words[at + page.R_START], words[at + page.R_END] = start_ns, self.now_ns
        words[at + page.R_SAMPLES] = self.samples
        for i in range(page.PHASE_SLOTS):
            words[at + page.R_TOTALS + i] = words[page.W_TOTALS + i]
            words[at + page.R_OUTSIDE + i] = words[page.W_OUTSIDE + i]
        words[at + page.R_NUMBER] = words[at + page.R_SEAL] = self.steps
        words[page.W_STEPS], words[page.W_SAMPLES] = self.steps, self.samples
        words[page.W_HISTOGRAMS + bin_of_ns(self.now_ns - start_ns)] += 1
        self.next += 1
        words[page.W_STEP_NEXT] = self.next + page.STEP_BIAS

    def many(self, count: int, phases: dict) -> None:
        for _ in range(count):
            self.step(phases)

    def define(self, name: str, state: str = "unattributed") -> None:
        page.write_user_phase(self.words, len(self.names) - len(page.PHASES), name.encode(), state.encode())
        self.names.append(name)

    def event(self, kind: str, step: int, text: str = "") -> None:
        page.write_event(self.words, kind, self.now_ns, step, text.encode())

    def enter(self, name: str) -> None:
        self.words[page.W_PHASE] = self.names.index(name)

    def end(self, reason: str) -> None:
        self.words[page.W_END] = self.now_ns
        self.words[page.W_ENDED] = page.END_REASONS.index(reason)

    def beat(self) -> None:
        """Bring the page up to this machine's clock, in no phase."""
        self.spend({"none": max(0, time.monotonic_ns() - self.now_ns)})


class Process:
    """A Rank in a process of its own: `rank.do("step", {"forward": 1000})`."""

    def __init__(self, directory, **given):
        given = {"start_unix_ns": time.time_ns(), "start_mono_ns": time.monotonic_ns(), **given}
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(directory), json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )  # fmt: skip
        self.pid = self.process.pid
        self.path = self._answer()

    def do(self, method: str, *arguments) -> None:
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()
        self._answer()

    def forever(self, phases: dict) -> None:
        """Step without a pause until killed."""
        self.do("forever", phases)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def _answer(self) -> str:
        line = self.process.stdout.readline()
        assert line, "the rank's process ended"
        return json.loads(line)


def main() -> None:
    given = json.loads(sys.argv[2])
    given.setdefault("pid", os.getpid())
    given.setdefault("pid_start_ticks", page.process_start_ticks())
    rank = Rank(sys.argv[1], **given)
    print(json.dumps(rank.path), flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        if method == "forever":
            print("null", flush=True)
            while True:
                rank.step(*arguments)
        getattr(rank, method)(*arguments)
        print("null", flush=True)


if __name__ == "__main__":
    main()
