"""Measures the step thread's waits for batches of PyTorch's DataLoader, by reason, for frameworks/torch/workers.py.

A wait for a batch that was not ready is charged to the making of that batch, by the worker's record of it
(loader_worker.py): to collating first, then to the dataset, divided by the batch's shares of CPU, run-queue delay and
blocking. What is left is the worker's start-up (its first batch) or a task that it got late, and `queue`: pickling,
copying to shared memory, pinning. A wait for a batch that was ready is all `queue`. Without the worker's record the
reason is unknown, unless batches were ready. About 2 us a batch; nothing is counted while phases are off.

Worker slots in the page are assigned by loader: the workers of the next epoch, or of a new loader of the same shape,
continue in the same slots. Workers beyond the slots are counted as left out.
"""

from __future__ import annotations

import os
import weakref
from time import perf_counter_ns

from goodput.rank_page import page
from goodput.rank_page.loader_words import LAST, LOADER
from goodput.sdk.automatic.loader_worker import WAITED, WorkerSlots

W = {name: page.W_LOADER + i for i, name in enumerate(LOADER)}
_BATCHES, _READY, _STARVED, _INSIDE = W["batches"], W["ready"], W["starved"], W["inside"]
_WAIT, _STORAGE, _DECODE = W["wait_ns"], W["wait_storage_ns"], W["wait_decode_ns"]
_COLLATE, _CPUS, _QUEUE = W["wait_collate_ns"], W["wait_cpus_ns"], W["wait_queue_ns"]
_STARTUP = W["wait_startup_ns"]
ENTRIES_MAX = 64
# Without workers, a quick batch is followed by so many skipped ones. One in 17 or 61 is measured, prime numbers, since
# slow batches (the next file, say) are often a power of two apart.
QUICK_NS, SKIPS = 1_000_000, 16
VERY_QUICK_NS, MANY_SKIPS = 100_000, 60
COUNT_MAX = 1 << 40  # of a setting of the loader


class Entry:
    """A loader and its `granted` slots from `first` on, in which the workers of `iterator` write."""

    def __init__(self, loader, shape: tuple, number: int):
        self.loader, self.shape, self.number = weakref.ref(loader), shape, number
        self.iterator = lambda: None
        self.first = self.granted = self.waited_ns = 0

    def is_of(self, other: Entry) -> bool:
        """Whether both are of one loader."""
        loader = self.loader()
        return self is other or (loader is not None and loader is other.loader())

    def is_busy(self) -> bool:
        iterator = self.iterator()
        return iterator is not None and not getattr(iterator, "_shutdown", False)


class IteratorStats:
    """The state of one iterator: `at` is the word of its first slot, `floor_ns` the end of its previous epoch."""

    __slots__ = ("at", "entry", "floor_ns", "granted", "last_ns", "workers")

    def __init__(self, entry: Entry, workers: int):
        self.entry, self.workers, self.granted = entry, workers, entry.granted
        self.at = page.W_WORKERS + entry.first * page.WORKER_WORDS
        self.floor_ns = self.last_ns = 0


class LoaderStats:
    """The loaders of one process."""

    def __init__(self, recorder, fetches):
        self.recorder, self.fetches = recorder, fetches
        self.entries: list[Entry] = []
        self.numbers = 0
        self.main: Entry | None = None
        self.main_words: memoryview | None = None  # the page with the settings of the main loader
        self.inside = None  # the fetcher of a loader without workers that is running
        self.marked: tuple | None = None  # when its samples were fetched
        self.sampled: Entry | None = None  # the loader of which only some batches are measured

    # -- iterators

    def entry_of(self, loader, iterator) -> Entry:
        """The entry for an iterator that is being created."""
        workers = loader.num_workers
        shape = (workers, loader.batch_size, type(loader.dataset).__qualname__)
        idle = [entry for entry in self.entries if entry.shape == shape and not entry.is_busy()]
        same = [entry for entry in idle if entry.loader() is loader]
        entry = next(iter(same or [entry for entry in idle if entry.loader() is None]), None)
        if entry is None:
            self.numbers += 1
            entry = Entry(loader, shape, self.numbers)
            self._grant(entry, workers)
            if len(self.entries) >= ENTRIES_MAX:
                self.entries[:] = [e for e in self.entries if e.is_busy() or e.granted][-ENTRIES_MAX + 1 :]
            self.entries.append(entry)
        entry.loader, entry.iterator = weakref.ref(loader), weakref.ref(iterator)
        self.recorder.words[W["left_out"]] += workers - entry.granted
        return entry

    def slots(self, entry: Entry, writer) -> WorkerSlots | None:
        """The slots of the entry's workers, None if it has none."""
        if not entry.granted:
            return None
        found = os.fstat(writer.fd)
        path = writer.path or f"/proc/{os.getpid()}/fd/{writer.fd}"
        at = page.W_WORKERS + entry.first * page.WORKER_WORDS
        inode = (found.st_dev, found.st_ino)
        words, now_ns = self.recorder.words, perf_counter_ns()
        return WorkerSlots(words, path, inode, at, entry.granted, entry.number, now_ns)

    def iterator_created(self, loader, entry: Entry, began_ns: int) -> IteratorStats:
        words = self.recorder.words
        words[W["starts"]] += 1
        words[W["start_ns"]] += max(perf_counter_ns() - began_ns, 0)
        if self.main is None or entry is self.main:
            self._set_main(entry)
        return IteratorStats(entry, loader.num_workers)

    def _set_main(self, entry: Entry) -> None:
        """Write the settings of the main loader, the one waited for most, into the page."""
        loader = entry.loader()
        if loader is None:
            return
        self.main = entry
        words = self.main_words = self.recorder.words
        settings = {
            "workers": loader.num_workers,
            "prefetch": loader.prefetch_factor,
            "batch_size": loader.batch_size,
            "persistent": loader.persistent_workers,
            "pinned": loader.pin_memory,
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "main": entry.number,
        }
        for name, value in settings.items():
            words[W[name]] = int(value) if isinstance(value, int) and 0 <= value < COUNT_MAX else 0

    def _grant(self, entry: Entry, workers: int) -> None:
        """Assign free slots to the entry; if there are too few, those of loaders that are gone, then of idle ones."""
        if not workers:
            return
        kept = (lambda e: True, lambda e: e.is_busy() or e.loader() is not None, Entry.is_busy)
        for keeps in kept:
            self.entries[:] = [e for e in self.entries if keeps(e)]
            first, free = _gap(self.entries, workers)
            if free >= workers or (free and keeps is kept[1]):
                break
        entry.first, entry.granted = first, min(free, workers)
        at, length = page.W_WORKERS + first * page.WORKER_WORDS, entry.granted * page.WORKER_WORDS
        for word in range(at, at + length):
            self.recorder.words[word] = 0

    # -- batches

    def batch_received(self, iterator, watched: IteratorStats, request: tuple, now_ns: int) -> None:
        """A batch of an iterator with workers was received; `request` is what `before_request` returned."""
        index, task, ready, began_ns = request
        words = self.recorder.words
        waited_ns = now_ns - began_ns
        words[_BATCHES] += 1
        words[_READY] += ready
        words[_STARVED] += not ready
        words[_WAIT] += waited_ns
        watched.last_ns = now_ns
        self._add_wait(watched.entry, waited_ns)
        if task is None or iterator._rcvd_idx != index + 1 or len(task) == 2 or task[0] >= watched.granted:
            words[_QUEUE] += waited_ns if ready else 0
            return
        slot = watched.at + task[0] * page.WORKER_WORDS
        words[slot + WAITED] += waited_ns
        record = words[slot + LAST : slot + page.WORKER_WORDS].tolist()
        if record[0] != index + 1 or record[1] <= watched.floor_ns or words[slot + LAST] != index + 1:
            words[_QUEUE] += waited_ns if ready else 0
            return
        storage, decode, collate, cpus, early, queue = split(began_ns, now_ns, record)
        words[_STORAGE] += storage
        words[_DECODE] += decode
        words[_COLLATE] += collate
        words[_CPUS] += cpus
        words[_QUEUE] += queue
        # The first tasks of an iterator wait for its worker processes to start.
        words[_STARTUP if index < watched.workers and not watched.floor_ns else _QUEUE] += early

    def select(self, watched: IteratorStats | None) -> None:
        """Another iterator is used for training from now on; one without workers is sampled.

        An iterator of the same loader continues its count of skipped batches, since epochs may be short.
        """
        entry = None if watched is None or watched.workers else watched.entry
        continues = entry is not None and self.sampled is not None and entry.is_of(self.sampled)
        self.fetches.set_sampling(entry is not None, continues)
        self.sampled = entry

    def batch_skipped(self, iterator, ns: int) -> None:
        """A batch was fetched in `ns` without measuring the reasons."""
        self.fetches.skipped(iterator, ns, ns < QUICK_NS)
        words = self.recorder.words
        words[_BATCHES] += 1
        words[_INSIDE] += 1
        words[_WAIT] += ns

    def fetch_raised(self, ns: int) -> None:
        """Fetching a batch raised after `ns`."""
        if self.recorder.words is not None:
            self.recorder.words[_WAIT] += ns

    def batch_made(self, iterator, watched: IteratorStats, began: tuple, marked: tuple, now_ns: int) -> None:
        """A batch of a loader without workers was made; moments are (wall, CPU of this thread).

        Its reasons also stand for the batches skipped before it, if it is a quick one as they were.
        """
        words, took_ns = self.recorder.words, max(now_ns - began[0], 1)
        is_quick = took_ns < QUICK_NS
        # Only batches of the training iterator are skipped.
        skips = (MANY_SKIPS if took_ns < VERY_QUICK_NS else SKIPS) if is_quick else 0
        skipped_ns = self.fetches.measured(iterator, skips)
        covered_ns = took_ns + (skipped_ns if is_quick else 0)
        dataset_ns = (marked[0] - began[0]) * covered_ns // took_ns
        decode_ns = (marked[1] - began[1]) * covered_ns // took_ns
        if decode_ns > dataset_ns:
            decode_ns = dataset_ns
        words[_BATCHES] += 1
        words[_INSIDE] += 1
        words[_WAIT] += took_ns
        words[_DECODE] += decode_ns
        words[_STORAGE] += dataset_ns - decode_ns
        words[_COLLATE] += covered_ns - dataset_ns
        self._add_wait(watched.entry, covered_ns)

    def _add_wait(self, entry: Entry, ns: int) -> None:
        entry.waited_ns += ns
        main = self.main
        if main is None or entry.waited_ns > main.waited_ns or self.recorder.words is not self.main_words:
            self._set_main(entry)


def before_request(iterator, watched: IteratorStats) -> tuple:
    """(index of the next batch, its task, number of ready batches, now in ns).

    Ready are those received out of order, those on the workers' queue, and those pinned.
    """
    index, tasks = iterator._rcvd_idx, iterator._task_info
    ready, results = len(tasks) - iterator._tasks_outstanding, iterator._worker_result_queue
    try:
        ready += results.qsize()
    except NotImplementedError:
        pass  # The platform has no sem_getvalue.
    if iterator._data_queue is not results:
        ready += len(iterator._data_queue.queue)
    if index == 0:
        watched.floor_ns = watched.last_ns
    return index, tasks.get(index), max(ready, 0), perf_counter_ns()


def split(began_ns: int, now_ns: int, record: list[int]) -> tuple[int, ...]:
    """Divide a wait into (storage, decode, collate, cpus, early, queue), which sum to it.

    `early` is the time before the worker began the batch.
    """
    # Comparisons, since calls of `min` and `max` would take half of the time.
    _, done_ns, dataset, cpu, delay, collate = record
    wait, early = now_ns - began_ns, done_ns - began_ns - dataset - collate
    if done_ns <= began_ns:
        return 0, 0, 0, 0, 0, wait
    if collate > wait:
        collate = wait
    fetch = wait - collate
    if fetch > dataset:
        fetch = dataset
    decode = fetch * cpu // dataset if cpu < dataset else fetch
    cpus = fetch * delay // dataset if delay < dataset else fetch
    if cpus > fetch - decode:
        cpus = fetch - decode
    left = wait - collate - fetch
    if early > left:
        early = left
    elif early < 0:
        early = 0
    return fetch - decode - cpus, decode, collate, cpus, early, left - early


def _gap(entries: list[Entry], wanted: int) -> tuple[int, int]:
    """(start, length) of the first run of `wanted` free slots, else of the longest run."""
    best, first = (0, 0), 0
    taken = sorted((e.first, e.first + e.granted) for e in entries if e.granted)
    for start, end in [*taken, (page.WORKERS_MAX, page.WORKERS_MAX)]:
        if start - first >= wanted:
            return first, start - first
        best = max(best, (first, start - first), key=lambda gap: gap[1])
        first = end
    return best
