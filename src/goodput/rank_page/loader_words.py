"""The data loader's words in a rank page: their names, how they are read, and their sums.

The words of a page are untrusted. Counters only grow, except in a slot that another loader has taken over, where they
restart at 0. Their writers are sdk/automatic/loader_stats.py and loader_worker.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from goodput.rank_page import page

# Word page.W_LOADER + i. `ready` and `starved` count batches of loaders with workers, `inside` those of the others.
# The wait_..._ns after wait_ns are its parts by reason. From "workers" on: the settings of the main loader, the one
# waited for most; `main` is its number.
LOADER = (
    *("batches", "ready", "starved", "inside", "starts", "start_ns", "left_out", "wait_ns"),
    *("wait_storage_ns", "wait_decode_ns", "wait_collate_ns"),
    *("wait_cpus_ns", "wait_queue_ns", "wait_startup_ns"),
    *("workers", "prefetch", "batch_size", "persistent", "pinned", "cpus", "main"),
)
# Word i of a worker's slot: its place (loader << 32 | worker << 16 | 1 if its run-queue delay is known; 0 for an unused
# slot), then sums. Its last batch follows: index + 1, when it was done, and its times.
WORKER = (
    *("place", "starts", "startup_ns", "batches", "idle_ns"),
    *("dataset_ns", "cpu_ns", "delay_ns", "collate_ns", "waited_ns"),
)
LAST = len(WORKER)
WAITS = tuple(name for name in LOADER if name.startswith("wait_") and name != "wait_ns")
# In `figures`, of the main loader's workers: their number, sums, and the one waited for most.
SUMMED = WORKER[1:]
FIGURES = (
    *LOADER,
    "worker_seen",
    "worker_delay_known",
    "worst_worker",
    "worst_waited_ns",
    *(f"worker_{name}" for name in SUMMED),
)


def loader_of(words: Sequence[int]) -> dict[str, int]:
    """The loader's words by name; {} before the first loader. Raises ValueError for a value out of range."""
    found = dict(zip(LOADER, words, strict=False))
    for name, value in found.items():
        if value >= page.NS_MAX:
            raise ValueError(f"loader word {name} is {value}")
    return found if found["starts"] or found["batches"] else {}


def workers_of(words: Sequence[int]) -> tuple[dict[str, int], ...]:
    """The slots in use, with `loader`, `worker` and `delay_known` from the first word. Raises ValueError."""
    found = []
    for at in range(0, len(words), page.WORKER_WORDS):
        place = words[at]
        if not place:
            continue
        values = dict(zip(SUMMED, words[at + 1 : at + LAST], strict=True))
        for name, value in values.items():
            if value >= page.NS_MAX:
                raise ValueError(f"worker slot {at // page.WORKER_WORDS}: {name} is {value}")
        identity = {"loader": place >> 32, "worker": place >> 16 & 0xFFFF, "delay_known": place & 1}
        found.append(identity | values)
    return tuple(found)


def waits_of(loader: dict[str, int]) -> dict[str, int]:
    """The step thread's waits by reason, in ns; "unknown" is the rest."""
    found = {name[len("wait_") : -len("_ns")]: loader.get(name, 0) for name in WAITS}
    return found | {"unknown": max(loader.get("wait_ns", 0) - sum(found.values()), 0)}


def parts_of(worker: dict[str, int]) -> dict[str, int]:
    """A worker's time by part, in ns. "storage" is the dataset's time that was neither CPU nor run-queue delay."""
    decode, cpus = worker["cpu_ns"], worker["delay_ns"]
    return {
        "storage": max(worker["dataset_ns"] - decode - cpus, 0),
        "decode": decode,
        "cpus": cpus,
        "collate": worker["collate_ns"],
        "idle": worker["idle_ns"],
        "startup": worker["startup_ns"],
    }


def figures(loader: dict[str, int], workers: Sequence[dict[str, int]]) -> dict[str, int]:
    """The FIGURES that are not 0: the loader's words and the sums over its main loader's workers."""
    own = [worker for worker in workers if worker["loader"] == loader.get("main")]
    found = dict(loader)
    if own:
        found |= {f"worker_{name}": sum(worker[name] for worker in own) for name in SUMMED}
        found["worker_seen"] = len(own)
        found["worker_delay_known"] = sum(worker["delay_known"] for worker in own)
        worst = max(own, key=lambda worker: worker["waited_ns"])
        found["worst_worker"], found["worst_waited_ns"] = worst["worker"], worst["waited_ns"]
    return {name: value for name, value in found.items() if 0 < value < page.NS_MAX}
