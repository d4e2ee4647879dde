"""Measures one variant of a loader: batches a second, and where the time of a batch goes."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator

import torch
from torch.utils.data import DataLoader

from goodput.probe.loader import worker_times
from goodput.probe.loader.limit import Point
from goodput.probe.loader.target import TargetError
from goodput.probe.loader.waits import Waits

# Batches of each worker that are left out: the first ones open files, and what was read ahead comes at once.
WARM_UP = 2
# Batches of each worker that are measured at least, within MINIMUM_SECONDS_MAX.
LEAST = 3
MINIMUM_SECONDS_MAX = 60.0

# What a worker was sampled in -> part of its time. "threads" is a wait for threads of the worker's own that compute.
_PART_OF = {
    **{name: name for name in ("storage", "lock", "unknown")},
    "sleep": "storage",
    "accept": "storage",
    "threads": "cpu",
}

Copy = Callable[[object], object]


class Meter:
    """Measures loaders whose workers write to `path`, each for about `seconds`."""

    def __init__(self, path: str, copy: Copy, seconds: float):
        self.copy, self.seconds = copy, seconds
        self.batch_bytes = 0
        self._slots = worker_times.slots(path)

    def point(self, loader: DataLoader, with_copy: bool = True) -> Point:
        """Raises TargetError if the loader fails, or delivers nothing for too long."""
        workers = loader.num_workers
        self._slots[:] = memoryview(bytes(worker_times.FILE_BYTES)).cast("q")
        copy = self.copy if with_copy else None
        batches = _endless(loader)
        try:
            with Waits(self._slots, workers) as waits:
                for _ in range(max(WARM_UP * workers, WARM_UP)):
                    _take(batches, copy)
                before = [self._slots[at] for at in range(len(self._slots))]
                for counts in waits.counts.values():
                    counts.clear()
                cycle = self._cycle(
                    batches, copy, max(LEAST * workers, LEAST), loader.batch_sampler is not None
                )
                after = [self._slots[at] for at in range(len(self._slots))]
        except TargetError:
            raise
        except Exception as error:
            # PyTorch's text has the worker's traceback; its last line names the error.
            lines = str(error).strip().splitlines() or [""]
            raise TargetError(f"with {workers} workers: {type(error).__name__}: {lines[-1]}") from error
        finally:
            batches.close()
        spent = [new - old for new, old in zip(after, before, strict=True)]
        return Point(workers=workers, **cycle, **_parts(spent, waits.counts, workers / cycle["rate"]))

    def _cycle(self, batches: Iterator, copy: Copy | None, least: int, is_batched: bool) -> dict:
        """Rate, samples of a batch, and the main process's seconds for a batch."""
        taken, samples, copied = 0, 0, 0.0
        start, start_cpu, copy_cpu = time.monotonic(), time.thread_time(), 0.0
        while True:
            size, copy_seconds, copy_cpu_seconds = _take(batches, copy)
            taken, samples, copied = taken + 1, samples + size, copied + copy_seconds
            copy_cpu += copy_cpu_seconds
            spent = time.monotonic() - start
            if (spent >= self.seconds and taken >= least) or spent >= MINIMUM_SECONDS_MAX:
                break
        return {
            "rate": taken / spent,
            "samples_per_batch": samples / taken if is_batched else 1.0,
            "copy": copied / taken,
            "transfer": max(0.0, time.thread_time() - start_cpu - copy_cpu) / taken,
        }

    def copy_alone(self, loader: DataLoader) -> float:
        """Copies a second of one batch that lies in memory, whose size is then `batch_bytes`."""
        batches = _endless(loader)
        try:
            batch = next(batches)
        finally:
            batches.close()
        self.batch_bytes = bytes_of(batch)
        self.copy(batch)
        start, taken = time.monotonic(), 0
        while (spent := time.monotonic() - start) < self.seconds or not taken:
            self.copy(batch)
            taken += 1
        return taken / spent


def _endless(loader: DataLoader) -> Generator:
    """The batches of a loader, again from the start where it ends. Closing the iterator ends its workers."""
    iterator = None
    try:
        while True:
            iterator, taken = iter(loader), 0
            for batch in iterator:
                taken += 1
                yield batch
            if not taken:
                raise TargetError("the loader has no batch")
    finally:
        if loader.num_workers and iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]


def _take(batches: Iterator, copy: Copy | None) -> tuple[int, float, float]:
    """Take one batch; its samples, and the copy's seconds of wall and of CPU time."""
    batch = next(batches)
    if copy is None:
        return samples_of(batch), 0.0, 0.0
    start, start_cpu = time.monotonic(), time.thread_time()
    copy(batch)
    return samples_of(batch), time.monotonic() - start, time.thread_time() - start_cpu


def samples_of(batch: object) -> int:
    """The length of the first tensor or list in a batch; 1 where there is none."""
    for _ in range(8):
        if isinstance(batch, dict):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, tuple) or (isinstance(batch, list) and batch and hasattr(batch[0], "shape")):
            batch = next(iter(batch), None)
        else:
            break
    with contextlib.suppress(TypeError):
        return max(1, len(batch))  # type: ignore[arg-type]
    return 1


def bytes_of(batch: object, depth: int = 8) -> int:
    """Of the tensors in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, dict):
        batch = list(batch.values())
    return (
        sum(bytes_of(part, depth - 1) for part in batch) if depth and isinstance(batch, list | tuple) else 0
    )


def _parts(spent: list[int], counts: dict[str, Counter], cycle: float) -> dict:
    """A worker's seconds for a batch by kind, from what all workers spent and what they were sampled in.

    `cycle` is all seconds of a worker for each batch. Outside of the fetcher it hands batches over, which is computing,
    or waits.
    """
    done = sum(spent[worker_times.BATCHES :: worker_times.FIELDS])
    if not done:
        return {}
    kinds, slept, idle = [], 0.0, cycle
    for at, place in enumerate(worker_times.PLACES):
        wall = sum(spent[worker_times.WALL + at :: worker_times.FIELDS]) / done / 1e9
        core = min(wall, sum(spent[worker_times.CORE + at :: worker_times.FIELDS]) / done / 1e9)
        found = counts[place]
        # On a core or waiting for one is what the kernel counts exactly.
        blocked = found.total() - found["cpu"]
        seconds = dict.fromkeys(("cpu", "storage", "lock", "unknown"), 0.0) | {"cpu": core}
        if wall - core > 0.02 * wall and not blocked:
            seconds["unknown"] = wall - core
        for kind in found:
            if kind != "cpu":
                share = (wall - core) * found[kind] / blocked
                seconds[_PART_OF[kind]] += share
                slept += share if kind == "sleep" and not at else 0.0
        kinds.append(seconds)
        idle -= wall
    outside = counts[worker_times.OUTSIDE]
    if outside:
        kinds[0]["cpu"] += max(0.0, idle) * outside["cpu"] / outside.total()
    return {
        "parts": {**kinds[0], "collate": sum(kinds[1].values())},
        "collate_parts": kinds[1],
        "slept": slept / kinds[0]["storage"] if kinds[0]["storage"] else 0.0,
    }
