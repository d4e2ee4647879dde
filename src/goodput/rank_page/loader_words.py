"""What a rank page says of the data loader: the names of its words, and how they are read and summed.

In: words of a page that is treated as hostile. Out: `loader_of`, what the step thread saw of its loaders;
`workers_of`, what each worker process did; `figures`, both in one bounded dictionary, which is what travels. Sums
only grow, but for a slot that went to another loader, which starts from 0. It does not know who wrote them
(sdk/loads.py, sdk/worker.py) nor what they mean for the account (account/loader.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from goodput.rank_page import page

# Word page.W_LOADER + i. `ready` and `starved` are of loaders with workers; `inside` counts the batches of the others.
# What is known of wait_ns by reason is in the wait_..._ns after it. From "workers" on they say what the loader is that
# was waited for most; `main` is its number.
LOADER = (
    *("batches", "ready", "starved", "inside", "starts", "start_ns", "left_out", "wait_ns"),
    *("wait_storage_ns", "wait_decode_ns", "wait_collate_ns"),
    *("wait_cpus_ns", "wait_queue_ns", "wait_startup_ns"),
    *("workers", "prefetch", "batch_size", "persistent", "pinned", "cpus", "main"),
)
# Word i of a worker's slot: who it is (loader << 32 | worker << 16 | 1 if its run-queue delay is known; 0 for nobody),
# then sums. Its last batch follows: index + 1, when it was done, and its times.
WORKER = (
    *("place", "starts", "startup_ns", "batches", "idle_ns"),
    *("dataset_ns", "cpu_ns", "delay_ns", "collate_ns", "waited_ns"),
)
LAST = len(WORKER)
WAITS = tuple(name for name in LOADER if name.startswith("wait_") and name != "wait_ns")
# Of the main loader's workers in `figures`: their number, sums, and the one that was waited for most.
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
    """The loader's words by name; {} where no loader was seen. Raises ValueError for an impossible one."""
    found = dict(zip(LOADER, words, strict=False))
    for name, value in found.items():
        if value >= page.NS_MAX:
            raise ValueError(f"loader word {name} is {value}")
    return found if found["starts"] or found["batches"] else {}


def workers_of(words: Sequence[int]) -> tuple[dict[str, int], ...]:
    """The slots in use. `loader`, `worker` and `delay_known` stand for the first word."""
    found = []
    for at in range(0, page.WORKERS_MAX * page.WORKER_WORDS, page.WORKER_WORDS):
        place = words[at]
        if not place:
            continue
        values = dict(zip(SUMMED, words[at + 1 : at + LAST], strict=True))
        for name, value in values.items():
            if value >= page.NS_MAX:
                raise ValueError(f"worker slot {at // page.WORKER_WORDS}: {name} is {value}")
        who = {"loader": place >> 32, "worker": place >> 16 & 0xFFFF, "delay_known": place & 1}
        found.append(who | values)
    return tuple(found)


def waits_of(loader: dict[str, int]) -> dict[str, int]:
    """The step thread's waits by reason, in ns; "unknown" is what no reason is known of."""
    found = {name[len("wait_") : -len("_ns")]: loader.get(name, 0) for name in WAITS}
    return found | {"unknown": max(loader.get("wait_ns", 0) - sum(found.values()), 0)}


def parts_of(worker: dict[str, int]) -> dict[str, int]:
    """A worker's time by part, in ns: what of the dataset's time was neither CPU nor run-queue delay was blocked."""
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
    """FIGURES that are not 0: the loader's words and the sums over the workers of its main loader."""
    own = [worker for worker in workers if worker["loader"] == loader.get("main")]
    found = dict(loader)
    if own:
        found |= {f"worker_{name}": sum(worker[name] for worker in own) for name in SUMMED}
        found["worker_seen"] = len(own)
        found["worker_delay_known"] = sum(worker["delay_known"] for worker in own)
        worst = max(own, key=lambda worker: worker["waited_ns"])
        found["worst_worker"], found["worst_waited_ns"] = worst["worker"], worst["waited_ns"]
    return {name: value for name, value in found.items() if 0 < value < page.NS_MAX}
