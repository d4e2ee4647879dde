"""Healthy trainings of real processes over gloo, with long evaluations and slow checkpoints, that are judged all the time.

    healthy_collectives.py DIRECTORY SEED... [--at-once N]

Each run forks its ranks from this process. While they train it reads their pages as an agent does, many times a second,
merges what it would push into a store, and asks the aggregator's accounts for a hang. A stall is STALL_SECONDS here, and each
pause is several times as long. At the end a rank really stops, which must be found. Prints one JSON object a run.
"""

import json
import os
import random
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from support.frameworks.forked_ranks import forked_ranks
from torch import nn

from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.ingest.store import Store
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader
from goodput_exporters.collectors.ranks import reported_collectives
from goodput_exporters.collectors.ranks.node_links import NodeLinks
from goodput_exporters.collectors.ranks.rank import Rank
from goodput_exporters.collectors.ranks.reached_peaks import ReachedPeaks

STALL_SECONDS, POLL_SECONDS, WAIT_SECONDS = 1.0, 0.1, 60
RUN_SECONDS_MAX = 240
# Who pauses: all ranks together, or rank 0 while the others wait for it in a collective.
PAUSES = ("evaluation of all", "evaluation of one", "checkpoint of all", "checkpoint of one", "named phase")
COMMUNICATE = ("barrier", "broadcast", "all_gather_object")


class Case:
    def __init__(self, seed: int, directory: Path):
        chosen = random.Random(f"healthy {seed}")
        self.seed, self.directory, self.run = seed, directory, f"healthy-{seed}"
        self.world = chosen.choice((2, 3))
        self.pauses = [chosen.choice(PAUSES) for _ in range(3)]
        self.seconds = [chosen.uniform(2.0, 3.5) * STALL_SECONDS for _ in self.pauses]
        self.meets = [chosen.choice(COMMUNICATE) for _ in self.pauses]
        self.steps = [chosen.randint(4, 30) for _ in self.pauses]  # before each pause
        self.wraps = chosen.random() < 0.7  # in DistributedDataParallel
        self.last = chosen.randrange(self.world)  # the rank that stops at the end


class SlowFile:
    """A file on storage that takes so long for what is written."""

    def __init__(self, path: Path, seconds: float):
        self.file, self.seconds = path.open("wb"), seconds

    def write(self, data) -> int:
        time.sleep(self.seconds)
        self.seconds = 0.0
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


class Training:
    """One rank's."""

    def __init__(self, case: Case, rank: int):
        self.case, self.rank = case, rank
        self.bare = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.model = nn.parallel.DistributedDataParallel(self.bare) if case.wraps else self.bare
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def step(self) -> None:
        self.model(torch.randn(8, 32)).sum().backward()
        if not self.case.wraps:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def pause(self, what: str, seconds: float, meet: str) -> None:
        import goodput

        if not what.endswith("one") or self.rank == 0:
            if what.startswith("evaluation"):
                self.evaluate(seconds)
            elif what.startswith("checkpoint"):
                torch.save(
                    self.bare.state_dict(), SlowFile(self.case.directory / f"saved-{self.rank}", seconds)
                )
            else:
                with goodput.phase("evaluation"):
                    time.sleep(seconds)
        if meet == "barrier":
            dist.barrier()
        elif meet == "broadcast":
            dist.broadcast(torch.ones(8), 0)
        else:
            dist.all_gather_object([None] * self.case.world, self.rank)

    def evaluate(self, seconds: float) -> None:
        self.bare.eval()
        with torch.no_grad():
            for _ in range(4):
                self.bare(torch.randn(8, 32))
                time.sleep(seconds / 4)
        self.bare.train()


def run_rank(case: Case, rank: int) -> None:
    import goodput.auto

    goodput.start(run=case.run, rank=rank, world_size=case.world, directory=str(case.directory / "pages"))
    store = dist.FileStore(str(case.directory / "store"), case.world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.world)
    torch.set_num_threads(1)
    training = Training(case, rank)
    for pause, seconds, meet, steps in zip(case.pauses, case.seconds, case.meets, case.steps, strict=True):
        for _ in range(steps):
            training.step()
        training.pause(pause, seconds, meet)
    for _ in range(5):
        training.step()
    (case.directory / f"healthy-{rank}").touch()
    if rank == case.last:
        time.sleep(WAIT_SECONDS)
    training.step()
    time.sleep(WAIT_SECONDS)


class Judge:
    """What agent and aggregator make of the pages of one run."""

    def __init__(self, case: Case):
        self.case, self.ranks, self.sequence = case, {}, 0
        self.store = Store()
        self.accounts = Accounts(
            self.store, history=History(None), stall_seconds=STALL_SECONDS, stale_seconds=30, age_seconds=0
        )
        self.accounts.hangs._began_ns = 0
        self._about = ReachedPeaks("", time.monotonic_ns), NodeLinks("", time.monotonic_ns)

    def poll(self):
        """The hang now, None if there is none."""
        for path in (self.case.directory / "pages").glob("*.page"):
            try:
                if path.name not in self.ranks:
                    self.ranks[path.name] = Rank(path.name, Reader(str(path)), "/proc", *self._about)
                self.sequence += 1
                report = self.ranks[path.name].poll(time.perf_counter_ns(), self.sequence)
            except PageError:
                continue  # It is being made.
            if report is not None:
                self.store.merge(report, time.time_ns())
        if self.case.run not in self.store.runs:
            return None
        return self.accounts.hang(self.case.run)

    def pause_ns(self) -> int:
        """The time since the last step."""
        last = [rank.last_step.end_ns for rank in self.ranks.values() if rank.last_step is not None]
        return time.perf_counter_ns() - max(last) if last else 0


def run(case: Case) -> dict:
    case.directory.mkdir(parents=True)
    judge = Judge(case)
    verdicts, looks, longest_ns, found, deadline = [], 0, 0, None, time.monotonic() + RUN_SECONDS_MAX
    with forked_ranks(case.world, lambda rank: run_rank(case, rank)):
        done = [case.directory / f"healthy-{rank}" for rank in range(case.world)]
        while time.monotonic() < deadline and found is None:
            is_healthy = not all(path.exists() for path in done)
            pause_ns, hang = judge.pause_ns(), judge.poll()
            looks += 1
            if is_healthy:
                longest_ns = max(longest_ns, pause_ns)
                verdicts += [] if hang is None else [hang.document()]
            else:
                found = hang
            time.sleep(POLL_SECONDS)
        planned = {"pauses": case.pauses, "meets": case.meets, "world": case.world, "last": case.last}
        return {
            "seed": case.seed,
            **planned,
            "verdicts": verdicts,
            "looks": looks,
            "longest_seconds": longest_ns / 1e9,
            "found": found and found.document(),
        }


def main() -> None:
    torch.set_num_threads(1)
    reported_collectives.AFTER_NS = reported_collectives.AGAIN_NS = 0
    arguments, at_once = sys.argv[2:], 1
    if "--at-once" in arguments:
        at = arguments.index("--at-once")
        at_once, arguments = int(arguments[at + 1]), arguments[:at]
    seeds = [int(seed) for seed in arguments]
    # Each process of these judges some of the runs, one after the other.
    parts = [seeds[i::at_once] for i in range(at_once)]
    pids = []
    for part in parts:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for seed in part:
                    line = json.dumps(run(Case(seed, Path(sys.argv[1]) / str(seed)))) + "\n"
                    os.write(1, line.encode())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        pids.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))


main()
