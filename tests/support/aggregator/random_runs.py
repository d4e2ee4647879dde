"""Random runs whose reports arrive complete and in order."""

from __future__ import annotations

import random

from support.account.account_history import Process, ns
from support.aggregator.ledgers import aggregator, take
from support.aggregator.reports import body_of, rank_report


def gpu_samples(rng: random.Random) -> dict[str, int]:
    """GPU samples that cover most of the compute, nearly nothing, or more than there was."""
    covered = rng.choice([ns(20 * rng.random()), ns(rng.random() / 20), ns(250), 0])
    idle = int(covered * 1.1 * rng.random())
    return {"compute_ns": covered, "idle_ns": idle, "energy_mj": rng.randrange(10**6)}


def random_process(rng: random.Random, rank: int, number: int, start: float, ranks: int) -> Process:
    """A rank process with everything that may occur in one, in fractions of a second that do not round away."""
    user = {"augment": "loader", "odd": "startup", "thing": "nonsense"}
    one = Process(
        rank, number, start, user=user, world_size=ranks, devices=1 + rank % 2, group=f"g{rank // 2}"
    )
    some = lambda most=0.5: rng.random() * most  # noqa: E731
    one.between(none=some(), restore=some(), augment=some())
    if number > 1 and rng.random() < 0.6:
        one.resumed(rng.randrange(-1, 12))
    one.step_next = max(one.step_next, 0)
    for _ in range(rng.randrange(0, 30)):
        names = rng.sample(
            ["none", "loader", "forward", "backward", "odd", "thing", "evaluation", "augment"], 4
        )
        parts = {name: some() for name in names}
        one.step(**parts, communication=some(), samples=rng.randrange(40), device=rng.random() < 0.5)
        if rng.random() < 0.3:
            one.between(
                **{name: some(3) for name in rng.sample(["none", "checkpoint", "forward", "loader"], 2)}
            )
        if rng.random() < 0.2:
            one.saved(committed=rng.random() < 0.7)
        if rng.random() < 0.03:
            one.between(none=70 + some())
    one.hardware = gpu_samples(random.Random(one.start_ns + rank))
    one.begun(**{name: some() for name in rng.sample(["forward", "loader", "communication", "none"], 2)})
    end = rng.choice(["finished", "failed", "killed", "killed", "silent"])
    return getattr(one, end)() if end in ("finished", "failed") else getattr(one, end)(after=some(40))


def process_after(one: Process, count: int, silent_seconds: float) -> Process:
    """The process as it was `silent_seconds` after its row number `count`."""
    found = Process(one.rank, one.number, one.start_ns / 1e9, user=one.user, **one.identity)
    found.start_ns = found.now_ns = found.last_ns = one.start_ns
    found.rows = one.rows[:count]
    if found.rows:
        found.now_ns = found.last_ns = found.rows[-1].end_ns
        found.totals = list(found.rows[-1].totals)
    found.events = [event for event in one.events if event.time_ns <= found.now_ns]
    found.hardware = {name: value * count // max(len(one.rows), 1) for name, value in one.hardware.items()}
    return found.silent(after=silent_seconds)


def random_processes(rng: random.Random) -> list[Process]:
    """The processes of a run of one to three ranks and one to three attempts."""
    ranks, start, processes = rng.randrange(1, 4), 1000.0, []
    for number in range(1, rng.randrange(2, 5)):
        processes += [random_process(rng, rank, number, start + rng.random(), ranks) for rank in range(ranks)]
        start = max(one.now_ns for one in processes) / 1e9 + rng.random() * 5
    return processes


def ingested_run(ledger, seed: int, every: int = 1):
    """An ingest with a random run in two pushes per process, and the time of its last report; `every` so many rows of it."""
    processes = random_processes(random.Random(seed))
    for one in processes:
        one.rows = one.rows[::every]
    ingest = aggregator(ledger)
    for one in processes:
        half = len(one.rows) // 2
        for rows in (one.rows[:half], one.rows[half:]):
            take(ingest, body_of(rank_report(one, rows=rows)))
    for process in ingest._store.processes.values():
        process.attempt.received_ns = 0
    return ingest, max(one.now_ns for one in processes)
