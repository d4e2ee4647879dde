"""Real ranks over gloo, each in a network namespace, of which one may have a slow link, and the verdict on them.

    slow_links.py DIRECTORY KIND-SEED...

Each case forks its ranks from this process. They all-reduce all the time, while this process reads their pages and sockets
as an agent does and judges them as the aggregator does. Prints one JSON object a case: what was planted and what was found.
"""

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from support.frameworks.forked_ranks import forked_ranks
from support.node.tun_network import NAME, Link, TunNetwork, address_of, enter

from goodput.account.collectives.slow_link import slow_link, slow_link_document
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.ingest.connections import packed_connections, unpacked
from goodput.aggregator.ingest.store import Store
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.ranks import reported_collectives, reported_connections
from goodput_exporters.collectors.ranks.collector import Ranks

WINDOW_SECONDS, WINDOWS, STALL_SECONDS, WAIT_SECONDS = 0.7, 3, 1.0, 60
RUN = "links"
# What is wrong with the link of one rank, and what is wrong where no link is slow.
FAULTS = ("loss", "delay", "rate", "stall")
INNOCENT = ("healthy", "late", "far", "missing")


class Case:
    def __init__(self, kind: str, seed: int, directory: Path):
        chosen = random.Random(f"{kind} {seed}")
        self.kind, self.seed, self.directory = kind, seed, directory
        self.world = chosen.choice((3, 4))
        self.culprit = chosen.randrange(self.world)
        self.length = chosen.choice((30_000, 100_000, 300_000))
        self.loss = chosen.uniform(0.03, 0.1)
        self.delay_seconds = chosen.uniform(0.04, 0.1)  # Packets of a busy machine take up to 20 ms.
        self.bytes_per_second = chosen.uniform(0.3e6, 1e6)

    def break_links(self, links: list[Link]) -> None:
        own = links[self.culprit]
        if self.kind == "loss":
            own.loss = self.loss
        elif self.kind == "delay":
            own.delay_seconds = self.delay_seconds
        elif self.kind == "rate":
            own.bytes_per_second = self.bytes_per_second
        elif self.kind == "stall":
            own.loss = 1.0
        elif self.kind == "far":
            for link in links:
                link.delay_seconds = self.delay_seconds


def run_rank(case: Case, rank: int, network: TunNetwork) -> None:
    enter(rank, network.sender)
    os.environ["GLOO_SOCKET_IFNAME"] = NAME
    import goodput.auto

    goodput.start(run=RUN, rank=rank, world_size=case.world, directory=str(case.directory / "pages"))
    store = dist.FileStore(str(case.directory / "store"), case.world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.world)
    tensor, is_broken = torch.ones(case.length), case.directory / "broken"
    for _ in goodput.steps(range(1 << 30)):
        if is_broken.exists() and rank == case.culprit:
            time.sleep(0.05 if case.kind == "late" else WAIT_SECONDS if case.kind == "missing" else 0)
        dist.all_reduce(tensor)
        time.sleep(0.002)  # Else the ranks and the network want more than the cores of a small machine.


class Judge:
    """What agent and aggregator make of the pages and sockets."""

    def __init__(self, case: Case):
        self.case, self.ranks, self.store = case, Ranks(Settings(str(case.directory / "pages"))), Store()
        self.accounts = Accounts(
            self.store, history=History(None), stall_seconds=STALL_SECONDS, stale_seconds=30, age_seconds=0
        )
        self.accounts.hangs._began_ns = 0
        self.begins: dict[object, set[int]] = {}  # of the windows, by rank

    def poll(self) -> None:
        for report in self.ranks.poll():
            self.store.merge(report, time.time_ns())
        for key, window in self.ranks._connections._seen.items():
            if window.samples is not None:
                self.begins.setdefault(key, set()).add(window.at_ns)

    def slow_link(self) -> dict | None:
        found = slow_link(unpacked(packed_connections(self.store.newest.get(RUN, {}).values())))
        return found and slow_link_document(found)

    def advice(self) -> dict[str, str]:
        """The advice on each cause, by its state."""
        document = asyncio.run(self.accounts.document(RUN))
        return {cause["state"]: cause["advice"] for cause in document["causes"]}

    def hang(self) -> dict | None:
        found = self.accounts.hang(RUN) if RUN in self.store.runs else None
        return found and found.document()

    def windows(self) -> int:
        """How many windows with connections have begun for every rank but the culprit, who if late waits for nobody."""
        known = sorted(map(len, self.begins.values()), reverse=True)
        return known[self.case.world - 2] if len(known) >= self.case.world - 1 else 0


def wait_for(condition, what: str, seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def judged(case: Case, network: TunNetwork) -> dict:
    judge = Judge(case)

    def steps(count: int) -> bool:
        judge.poll()
        known = [rank.snapshot.steps_done for rank in judge.ranks.followed() if rank.snapshot is not None]
        return len(known) == case.world and min(known) >= count

    wait_for(lambda: steps(5), f"{case.kind} {case.seed}: no step")
    before, begun = judge.slow_link(), judge.windows()
    (case.directory / "broken").touch()
    case.break_links(network.links)
    hang, found, advice = None, [], {}
    if case.kind in ("stall", "missing"):
        wait_for(lambda: judge.poll() or is_judged(judge), f"{case.kind} {case.seed}: no hang")
        hang = judge.hang()
    else:
        # The window in which the link broke, and those after it.
        wait_for(lambda: judge.poll() or judge.windows() > begun, "no connections are read")
        for at in range(begun + 2, begun + 2 + WINDOWS):
            wait_for(lambda at=at: judge.poll() or judge.windows() >= at, "no connections are read")
            found.append(judge.slow_link())
        advice = judge.advice()
    judge.ranks.close()
    return {"before": before, "found": found, "hang": hang, "advice": advice}


def is_judged(judge: Judge) -> bool:
    """Whether it hangs, and if its link carries nothing for as long as a link must."""
    hang = judge.hang()
    collective = hang and hang["collective"]
    if judge.case.kind == "missing":
        return bool(collective) and hang["seconds"] > 2 * STALL_SECONDS
    return bool(collective) and collective["slow_link"] is not None


def run(case: Case) -> dict:
    (case.directory / "pages").mkdir(parents=True)
    network = TunNetwork(case.world, case.seed)
    try:
        with forked_ranks(case.world, lambda rank: run_rank(case, rank, network)):
            network.start()
            planted = {"kind": case.kind, "seed": case.seed, "world": case.world, "culprit": case.culprit}
            return {**planted, "address": address_of(case.culprit), **judged(case, network)}
    finally:
        network.stop()


def main() -> None:
    torch.set_num_threads(1)
    reported_connections.WINDOW_NS = int(WINDOW_SECONDS * 1e9)
    reported_connections.WINDOW_NS_MAX = int(20e9)
    reported_connections.AFTER_NS = reported_collectives.AFTER_NS = int(STALL_SECONDS * 1e9)
    for name in sys.argv[2:]:
        kind, seed = name.split("-")
        print(json.dumps(run(Case(kind, int(seed), Path(sys.argv[1]) / name))), flush=True)


main()
