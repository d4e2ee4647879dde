"""Waiting for the data loader."""

from statistics import median

from goodput.account.sampled_stacks import where
from goodput.account.states import INDEX
from goodput.account.text import on

STATE = "loader"
# A rank stands out if it waits this many times as long as the median of the others.
ALONE_RATIO_MIN = 2
# With this many batches ready on average when one is requested, producing them is not the bottleneck.
READY_MIN = 1.0
# A worker is slow if it causes this many times its even share of the waiting.
WORST_RATIO_MIN = 2
ADVICE = "More workers (num_workers, persistent_workers, prefetch_factor), cheaper decoding, or data on faster storage."
GUESSED = (
    "No loader is known, so time in no phase before a forward pass counts as making the batch (an estimate; "
    "goodput.loader would measure it): make batches ahead of their use, in a DataLoader's workers or a thread, or make "
    "them cheaper."
)
_ON_GPU = ", on the GPU"  # where decoding may be cheaper, if there is one
ALONE = "check that node's disk, CPU and network, or the shard it reads."


def advise(account) -> str:
    """Say whether one rank waits or all do, the main reason if the loader was measured, and what to change."""
    columns = zip(*map(account.of, ("states", "rank", "host", "observed")), strict=True)
    waits = sorted((states[INDEX[STATE]], rank, host) for states, rank, host, seen in columns if seen)
    most, rank, host = waits.pop()
    found = _inside(account)
    if waits and most > ALONE_RATIO_MIN * median(ns for ns, _, _ in waits):
        head = f"Rank {rank}{on(host)} waits for its loader much longer than the others"
        return f"{head}: {found or f'{ALONE}{where(account, rank)}'}"
    if found is None and any(account.of("guessed_loader")):
        return f"{'All ranks wait for their' if waits else 'The rank waits for its'} batches. {GUESSED}{where(account)}"
    head = "All ranks wait for their loaders" if waits else "The rank waits for its loader"
    if found is None:
        return f"{head}: {ADVICE[0].lower()}{ADVICE[1:]}"
    return f"{head}: {found}"


def _inside(account) -> str | None:
    """The main reason for the waits and what to do; None if less than half of the waiting has a known reason."""
    loader = account.loader
    leading = loader.leading()
    if leading is None:
        return None
    reason, part = leading
    to_do = _BY_REASON[reason](loader)
    if account.is_on_cpu:
        to_do = to_do.replace(_ON_GPU, "")
    return f"{100 * part:.0f} % of the wait is {to_do}."


def _storage(loader) -> str:
    if not loader.most["workers"]:
        return (
            "reading in the training process itself (num_workers=0), blocked on storage or network, or without a "
            "free core: use workers, which read ahead, or put the data on faster storage"
        )
    return (
        "workers blocked on storage or network: put the data on faster storage or cache it, read larger pieces, "
        f"or hide it with more workers{_more(loader, bounded=False)}"
    )


def _decode(loader) -> str:
    if not loader.most["workers"]:
        return (
            "decoding and transforms on the CPU of the training process itself (num_workers=0"
            f"{_cores(loader)}): use workers, or make decoding cheaper"
        )
    return (
        "decoding and transforms on the workers' CPUs: make them cheaper (smaller images, a faster decoder, ready-made "
        f"tensors{_ON_GPU}), or take more workers{_more(loader, bounded=True)}"
    )


def _collate(loader) -> str:
    return (
        "collate_fn, which puts samples together into a batch: make it cheaper (one copy into one tensor, no Python "
        "loop), or do part of it in the dataset" + ("" if loader.most["workers"] else "; and use workers")
    )


def _cpus(loader) -> str:
    now = f"num_workers={loader.most['workers']}{_cores(loader)}"
    return (
        f"workers that had no free core ({now}): give the job more CPUs, or run fewer workers and fewer "
        "threads in each"
    )


def _queue(loader) -> str:
    ready = loader.total["ready"] / loader.total["batches"] if loader.total["batches"] else 0.0
    worst, seen = loader.most["worst_waited_ns"], loader.most["worker_seen"]
    if seen > 1 and worst > WORST_RATIO_MIN * loader.most["wait_ns"] / seen:
        slow = f"; worker {loader.most['worst_worker']} causes most of it: check the samples that it reads"
    else:
        slow = ""
    if ready >= READY_MIN:
        ready_text = f"{ready:.1f} batches were ready on average"
        return (
            f"bringing finished batches to the training process ({ready_text}): smaller batches or types, "
            f"tensors instead of Python objects, pin_memory, fewer workers{slow}"
        )
    busy = loader.busy()
    idle_text = "" if busy is None else f" (workers were {100 * (1 - busy):.0f} % idle)"
    return (
        f"bringing batches to the training process, or workers without a task{idle_text}: a larger prefetch_factor than "
        f"{loader.most['prefetch']}, tensors instead of Python objects, smaller batches, pin_memory{slow}"
    )


def _startup(loader) -> str:
    starts = loader.most["starts"]
    keep = "one loader for the whole run" if loader.most["persistent"] else "persistent_workers=True"
    times = f"{starts} time{'s' * (starts != 1)} on the rank that waited most"
    return f"starting workers ({times}): {keep}, fewer imports, or a lighter dataset to hand over"


def _more(loader, bounded: bool) -> str:
    """The number of workers that would keep up, and whether there are enough cores for them."""
    workers, enough, cores = loader.most["workers"], loader.enough_workers(), loader.cores()
    busy = loader.busy()
    now = f"num_workers={workers}" + ("" if busy is None else f", {100 * busy:.0f} % busy")
    if enough is None or enough <= workers:
        return f" ({now})"
    if bounded and cores is not None and enough > cores:
        return f" ({now}; about {enough} would keep up, but there are {cores} cores for each rank{on(loader.host)})"
    return f" ({now}; about {enough} would keep up)"


def _cores(loader) -> str:
    cores = loader.cores()
    return "" if cores is None else f", {cores} cores for each rank{on(loader.host)}"


_BY_REASON = {
    "storage": _storage,
    "decode": _decode,
    "collate": _collate,
    "cpus": _cpus,
    "queue": _queue,
    "startup": _startup,
}
