"""What the workers of a loader do, written by themselves into a file that the main process maps too.

A worker has one slot of integers. Its fetcher is wrapped, which calls the dataset and the collate function; neither
is changed. Time on a core and time waiting for one are the kernel's, from /proc/thread-self/schedstat.
"""

from __future__ import annotations

import mmap
import os
import time

PLACES = ("dataset", "collate")
OUTSIDE = "outside"
# PLACE is 0 outside the fetcher, 1 in the dataset, 2 in the collate function; then for each of these two
# nanoseconds of wall time and of a core or the wait for one.
PID, PLACE, BATCHES, WALL, CORE = 0, 1, 2, 3, 5
FIELDS = 8
WORKERS_MAX = 256
FILE_BYTES = WORKERS_MAX * FIELDS * 8


class WorkerInit:
    """A `worker_init_fn`: wraps the worker's fetcher, then calls the user's."""

    def __init__(self, path: str, then):
        self._path, self._then = path, then

    def __call__(self, worker: int) -> None:
        _wrap_fetcher(slots(self._path)[worker * FIELDS : (worker + 1) * FIELDS])
        if self._then is not None:
            self._then(worker)


def slots(path: str) -> memoryview:
    """The file as 64-bit integers, FIELDS for each worker."""
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), FILE_BYTES)).cast("q")


def _wrap_fetcher(slot: memoryview) -> None:
    """Of this worker process alone."""
    from torch.utils.data import _DatasetKind

    create = _DatasetKind.create_fetcher
    schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    slot[PID] = os.getpid()

    def core_ns() -> int:
        on_core, waited, _ = os.pread(schedstat, 64, 0).split()
        return int(on_core) + int(waited)

    def create_fetcher(*arguments):
        fetcher = create(*arguments)
        _time_fetcher(fetcher, slot, core_ns)
        return fetcher

    _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[assignment]


def _time_fetcher(fetcher, slot: memoryview, core_ns) -> None:
    fetch, collate = fetcher.fetch, fetcher.collate_fn

    def timed(place: int, function, argument):
        outer, slot[PLACE] = slot[PLACE], place
        start_ns, start_core_ns = time.monotonic_ns(), core_ns()
        try:
            return function(argument)
        finally:
            wall, core = time.monotonic_ns() - start_ns, core_ns() - start_core_ns
            slot[PLACE] = outer
            slot[WALL + place - 1] += wall
            slot[CORE + place - 1] += core
            if (
                outer
            ):  # The collate function is called by the fetcher, whose time is then the dataset's alone.
                slot[WALL + outer - 1] -= wall
                slot[CORE + outer - 1] -= core
            else:
                slot[BATCHES] += 1

    fetcher.collate_fn = lambda data: timed(2, collate, data)
    fetcher.fetch = lambda index: timed(1, fetch, index)
