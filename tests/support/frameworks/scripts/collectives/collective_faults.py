"""Plants faults in collectives of real processes over gloo and prints what the verdict and the Flight Recorder say.

    collective_faults.py DIRECTORY SEED... [--faults NAME...]

Each case forks its ranks from this process, waits until they are stuck, reads their pages and Flight Recorders, and kills
them. Prints one JSON object a case: what was planted, the verdict's document, and by rank the Flight Recorder's calls.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "400"

import torch
import torch.distributed as dist
from support.frameworks.forked_ranks import forked_ranks

from goodput.account.collective_verdict import verdict
from goodput.account.collectives.calls import Call, GroupCalls, RankCalls
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader
from goodput_exporters.collectors.ranks import reported_collectives

FAULTS = ("missing", "operation", "size", "order", "deadlock", "kill", "stop")
PHASES = ("loader", "forward", "backward", "checkpoint")
WAIT_SECONDS = 30


class Case:
    def __init__(self, fault: str, seed: int, directory: Path):
        chosen = random.Random(f"{fault} {seed}")
        self.fault, self.directory = fault, directory
        self.world = 3 if fault == "deadlock" else chosen.choice((3, 4))
        self.culprit = chosen.randrange(self.world)
        self.at = chosen.randint(1, 6)  # calls before the fault
        self.phase = chosen.choice(PHASES)
        self.length = chosen.choice((16, 1000, 50_000))
        # The default group, or one made with all ranks, which has sequence numbers of its own.
        self.own_group = fault != "deadlock" and chosen.random() < 0.5
        self.sequence = self.at + 1

    def planted(self) -> dict:
        named = {"culprit": self.culprit, "sequence": self.sequence, "own_group": self.own_group}
        return {"fault": self.fault, "world": self.world, "phase": self.phase, **named}


def run_rank(case: Case, rank: int) -> None:
    import goodput.auto

    goodput.start(run="faults", rank=rank, world_size=case.world, directory=str(case.directory / "pages"))
    store = dist.FileStore(str(case.directory / "store"), case.world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.world)
    group = dist.new_group(list(range(case.world)), group_desc="own") if case.own_group else None
    pairs = [dist.new_group(pair, group_desc=f"pair {i}") for i, pair in enumerate(([0, 1], [1, 2], [0, 2]))]
    threading.Thread(target=dump, args=(case, rank), daemon=True).start()
    tensor = torch.ones(case.length)
    for _ in range(case.at):
        dist.all_reduce(tensor, group=group)
    try:
        break_at(case, rank, tensor, group, pairs)
    except RuntimeError:
        pass  # gloo has noticed.
    (case.directory / f"over-{rank}").touch()
    time.sleep(600)


def break_at(case: Case, rank: int, tensor, group, pairs) -> None:
    import goodput

    is_culprit = rank == case.culprit
    if case.fault in ("missing", "kill", "stop") and is_culprit:
        with goodput.phase(case.phase):
            (case.directory / f"over-{rank}").touch()
            time.sleep(600)
    elif case.fault == "operation" and is_culprit:
        dist.reduce(tensor, rank, group=group)
    elif case.fault == "size" and is_culprit:
        dist.all_reduce(torch.ones(2 * case.length), group=group)
    elif case.fault == "order":
        both = [tensor, torch.ones(3 * case.length)]
        works = [
            dist.all_reduce(one, group=group, async_op=True) for one in (both[::-1] if is_culprit else both)
        ]
        for work in works:
            work.wait()
    elif case.fault == "deadlock":
        dist.all_reduce(tensor, group=pairs[rank])
    dist.all_reduce(tensor, group=group)


def dump(case: Case, rank: int) -> None:
    """In a thread of this script: the rank's own hangs in gloo."""
    while not (case.directory / "dump").exists():
        time.sleep(0.02)
    draft = case.directory / f"draft-{rank}"
    draft.write_bytes(torch._C._distributed_c10d._dump_fr_trace_json())
    draft.rename(case.directory / f"flight-{rank}")


def reported_calls(case: Case) -> list[RankCalls]:
    """What an agent would report of each rank."""
    found = []
    for rank in range(case.world):
        paths = list((case.directory / "pages").glob(f"*.{rank}.1.page"))
        try:
            with Reader(str(paths[0])) as reader:
                snapshot, head, ring = reader.snapshot(), reader.collectives(), reader.collectives(since=0)
                alive, pid = reader.alive(), snapshot.identity["pid"]
        except (PageError, IndexError):
            return []
        if head is None or ring is None:
            return []
        reported = reported_collectives.rows(
            ring, head, snapshot, reported_collectives._is_stopped(pid, "/proc")
        )
        groups = tuple(
            GroupCalls(
                *(getattr(g, name) for name in GroupCalls._fields[:6]),
                tuple(Call(*as_tuple(c)) for c in g.recent),
            )
            for g in reported.groups
        )
        now_ns = snapshot.unix_ns(time.perf_counter_ns())
        gone = "" if alive else "dead"
        found.append(
            RankCalls(rank, "here", snapshot.phase, gone, now_ns, 0, groups, True, reported.is_stopped)
        )
    return found


def as_tuple(call) -> tuple:
    return tuple(getattr(call, name) for name in Call._fields)


def calls_of(case: Case, one: RankCalls) -> int:
    """How many calls this rank has issued in the group of the fault."""
    name = f"pair {one.rank}" if case.fault == "deadlock" else "own" if case.own_group else "default_pg"
    return next((group.calls for group in one.groups if group.description == name), 0)


def is_stuck(case: Case) -> bool:
    """Whether each rank is in the broken call, beyond it, where the fault put it, or aborted by gloo."""
    ranks = reported_calls(case)
    if len(ranks) < case.world:
        return False
    for one in ranks:
        is_over = (case.directory / f"over-{one.rank}").exists()
        wanted = 1 if case.fault == "deadlock" else case.sequence + (case.fault == "order")
        if not is_over and not one.gone and calls_of(case, one) < wanted:
            return False
    return True


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def run(case: Case) -> dict:
    case.directory.mkdir(parents=True)
    with forked_ranks(case.world, lambda rank: run_rank(case, rank)) as pids:
        wait_for(lambda: is_stuck(case), f"{case.planted()}: not stuck")
        if case.fault in ("kill", "stop"):
            os.kill(pids[case.culprit], signal.SIGKILL if case.fault == "kill" else signal.SIGSTOP)
        gone = {case.culprit} if case.fault in ("kill", "stop") else set()
        if case.fault == "kill":
            os.waitpid(pids[case.culprit], 0)
        time.sleep(0.1)  # What a broken call still does is no part of what is tested.
        reported = reported_calls(case)
        found = verdict(reported)
        (case.directory / "dump").touch()
        alive = [rank for rank in range(case.world) if rank not in gone and is_running(pids[rank])]
        wait_for(
            lambda: all((case.directory / f"flight-{r}").exists() or not is_running(pids[r]) for r in alive),
            "no Flight Recorder",
        )
        alive = [rank for rank in alive if (case.directory / f"flight-{rank}").exists()]
        flights = {rank: flight(case, rank) for rank in alive}
        issued = [calls_of(case, one) for one in reported]
        document = found.document() if found else None
        return {**case.planted(), "verdict": document, "flights": flights, "issued": issued}


def is_running(pid: int) -> bool:
    """Not ended: gloo aborts a process whose peer sends other sizes than it expects."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def flight(case: Case, rank: int) -> dict[str, list]:
    """By description of a group the operations and sizes that the Flight Recorder has, in order."""
    found: dict[str, list] = {}
    for entry in json.loads((case.directory / f"flight-{rank}").read_text())["entries"]:
        one = entry["profiling_name"].removeprefix("gloo:"), entry["input_sizes"]
        found.setdefault(entry["process_group"][1], []).append(one)
    return found


def main() -> None:
    torch.set_num_threads(1)
    arguments = sys.argv[2:]
    faults = FAULTS
    if "--faults" in arguments:
        at = arguments.index("--faults")
        faults, arguments = tuple(arguments[at + 1 :]), arguments[:at]
    for seed in map(int, arguments):
        for fault in faults:
            print(json.dumps(run(Case(fault, seed, Path(sys.argv[1]) / f"{fault}-{seed}"))), flush=True)


main()
