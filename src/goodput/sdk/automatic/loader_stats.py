"""What the step thread waits for in PyTorch's DataLoader: the words of rank_page.loader_words, and which loader has which workers' slots.

Counts how many batches lay ready at each request, and splits each wait by what the batch's worker did meanwhile, as
loader_worker.py recorded it. Called by frameworks/torch/workers.py.

A wait for a batch that was not done when it was asked for is charged to the making of that batch, up to its length:
first to collating, then to the dataset's part in the batch's own shares of CPU, run-queue delay and blocking. The
time that a batch is under way shifts arrivals but does not make them rarer, since the worker makes the next one
meanwhile. What is left is the worker's start (its first batch) or a task that came late, and `queue`: pickling, copying
to shared memory, pinning. A wait for a batch that was done is `queue` whole: it was under way, or behind another. Where
the worker's record of the batch is gone, the reason is not known, unless batches lay ready: then it is `queue` too.
About 2 us a batch. Nothing is counted while the overhead budget has phases off.

Slots go by loader: an epoch's workers go on where those of the last one stopped, and so do those of a loader that is
made anew with the same shape. Workers beyond the slots are left out and counted.
"""

from __future__ import annotations

import os
import weakref
from time import perf_counter_ns

from goodput.rank_page import page
from goodput.rank_page.loader_words import LAST, LOADER
from goodput.sdk.automatic.loader_worker import WAITED, Place

W = {name: page.W_LOADER + i for i, name in enumerate(LOADER)}
_BATCHES, _READY, _STARVED, _INSIDE = W["batches"], W["ready"], W["starved"], W["inside"]
_WAIT, _STORAGE, _DECODE, _COLLATE = (
    W["wait_ns"],
    W["wait_storage_ns"],
    W["wait_decode_ns"],
    W["wait_collate_ns"],
)
_CPUS, _QUEUE, _STARTUP = W["wait_cpus_ns"], W["wait_queue_ns"], W["wait_startup_ns"]
ENTRIES_MAX = 64
# A batch that the step thread made in less than this is followed by so many that are not looked at. One in a prime
# number is, since what makes batches slow, such as the next file, comes every so many of them, often a power of two.
QUICK_NS, SKIPS = 1_000_000, 16
VERY_QUICK_NS, MANY_SKIPS = 100_000, 60
COUNT_MAX = 1 << 40  # of what a loader says of itself


class Entry:
    """A loader with its slots, `granted` from `first` on; `iterator` is the one whose workers write there."""

    def __init__(self, loader, shape: tuple, number: int):
        self.loader, self.shape, self.number = weakref.ref(loader), shape, number
        self.iterator = lambda: None
        self.first = self.granted = self.waited_ns = 0

    def is_of(self, other: Entry) -> bool:
        """Whether both are of one loader, or of one that was made anew."""
        loader = self.loader()
        return self is other or (loader is not None and loader is other.loader())

    def is_busy(self) -> bool:
        iterator = self.iterator()
        return iterator is not None and not getattr(iterator, "_shutdown", False)


class IteratorStats:
    """What is kept for one iterator. `at` is its first slot's word, `floor_ns` the end of its last epoch."""

    __slots__ = ("at", "entry", "floor_ns", "granted", "last_ns", "workers")

    def __init__(self, entry: Entry, workers: int):
        self.entry, self.workers, self.granted = entry, workers, entry.granted
        self.at = page.W_WORKERS + entry.first * page.WORKER_WORDS
        self.floor_ns = self.last_ns = 0


class LoaderStats:
    """The loaders of one process."""

    def __init__(self, recorder):
        self.recorder = recorder
        recorder.word_batches, recorder.word_inside, recorder.word_wait = _BATCHES, _INSIDE, _WAIT
        self.entries: list[Entry] = []
        self.numbers = 0
        self.main: Entry | None = None
        self.led: memoryview | None = None  # the page that says what the main loader is
        self.inside = None  # the fetcher of a loader without workers that is at work
        self.marked: tuple | None = None  # when its samples were there
        self.looked: Entry | None = None  # whose batches are looked at now and then

    # -- iterators

    def entry_of(self, loader, iterator) -> Entry:
        """The entry that an iterator in the making shall use."""
        workers = loader.num_workers
        shape = (workers, loader.batch_size, type(loader.dataset).__qualname__)
        idle = [entry for entry in self.entries if entry.shape == shape and not entry.is_busy()]
        entry = next((e for e in idle if e.loader() is loader), None)
        if entry is None:
            entry = next((e for e in idle if e.loader() is None), None)
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

    def place(self, entry: Entry, writer) -> Place | None:
        """Where the entry's workers write."""
        if not entry.granted:
            return None
        found = os.fstat(writer.fd)
        path = writer.path or f"/proc/{os.getpid()}/fd/{writer.fd}"
        at = page.W_WORKERS + entry.first * page.WORKER_WORDS
        inode = (found.st_dev, found.st_ino)
        return Place(self.recorder.words, path, inode, at, entry.granted, entry.number, perf_counter_ns())

    def made(self, loader, entry: Entry, began_ns: int) -> IteratorStats:
        """The iterator is there."""
        words = self.recorder.words
        words[W["starts"]] += 1
        words[W["start_ns"]] += max(perf_counter_ns() - began_ns, 0)
        if self.main is None or entry is self.main:
            self._lead(entry, loader)
        return IteratorStats(entry, loader.num_workers)

    def _lead(self, entry: Entry, loader) -> None:
        """This is the loader that was waited for most."""
        if loader is None:
            return
        self.main, words = entry, self.recorder.words
        self.led = words
        try:
            cpus = len(os.sched_getaffinity(0))
        except (AttributeError, OSError):
            cpus = os.cpu_count() or 0
        said = {
            "workers": loader.num_workers,
            "prefetch": loader.prefetch_factor,
            "batch_size": loader.batch_size,
            "persistent": loader.persistent_workers,
            "pinned": loader.pin_memory,
            "cpus": cpus,
            "main": entry.number,
        }
        for name, value in said.items():
            words[W[name]] = int(value) if isinstance(value, int) and 0 <= value < COUNT_MAX else 0

    def _grant(self, entry: Entry, workers: int) -> None:
        """Give the entry slots that nobody writes to, of loaders that are gone or idle where there are no others."""
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

    def arrived(self, iterator, watched: IteratorStats, asked: tuple, now_ns: int) -> None:
        """A batch of an iterator with workers has come. `asked` is what `ask` said before."""
        index, task, ready, began_ns = asked
        words = self.recorder.words
        waited_ns = now_ns - began_ns
        words[_BATCHES] += 1
        words[_READY] += ready
        words[_STARVED] += not ready
        words[_WAIT] += waited_ns
        watched.last_ns = now_ns
        entry = watched.entry
        entry.waited_ns += waited_ns
        if words is not self.led or (entry is not self.main and entry.waited_ns > self.main.waited_ns):
            self._lead(entry, entry.loader())
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
        # An iterator's first tasks wait for the processes to start.
        words[_STARTUP if index < watched.workers and not watched.floor_ns else _QUEUE] += early

    def look_at(self, watched: IteratorStats | None) -> None:
        """Another iterator is asked for training's batches from now on. One without workers is looked at here.

        The next one of the same loader goes on where the last one stopped: an epoch may be short.
        """
        recorder, entry = self.recorder, None if watched is None or watched.workers else watched.entry
        if entry is None or self.looked is None or not entry.is_of(self.looked):
            recorder.skips_left = recorder.skipped_ns = 0
        recorder.sampling, self.looked = entry is not None, entry

    def passed(self, iterator, ns: int) -> None:
        """A batch came in `ns` that was not looked at."""
        recorder = self.recorder
        if recorder.skips_left > 0 and recorder.iterator is not None and recorder.iterator() is iterator:
            recorder.skips_left -= 1
            if ns < QUICK_NS:
                recorder.skipped_ns += ns
            else:
                recorder.skips_left = 0  # Why it was slow is not known. The next one is looked at.
        words = self.recorder.words
        words[_BATCHES] += 1
        words[_INSIDE] += 1
        words[_WAIT] += ns

    def raised(self, ns: int) -> None:
        """A batch was waited for and did not come."""
        if self.recorder.words is not None:
            self.recorder.words[_WAIT] += ns

    def arrived_here(
        self, iterator, watched: IteratorStats, began: tuple, marked: tuple, now_ns: int
    ) -> None:
        """A batch of a loader without workers was made; moments are (wall, CPU of this thread).

        After a quick one some of the same loader are not looked at: their reasons are taken to be those of the next one
        that is, if that is a quick one, too.
        """
        recorder = self.recorder
        words, entry, took_ns = recorder.words, watched.entry, max(now_ns - began[0], 1)
        stands_ns = took_ns
        # Only an iterator that is known to be training's is not looked at.
        if recorder.sampling and recorder.iterator is not None and recorder.iterator() is iterator:
            passed_ns, recorder.skipped_ns = recorder.skipped_ns, 0
            recorder.skips_left = (
                MANY_SKIPS if took_ns < VERY_QUICK_NS else SKIPS if took_ns < QUICK_NS else 0
            )
            if recorder.skips_left:
                stands_ns += passed_ns
        dataset_ns = (marked[0] - began[0]) * stands_ns // took_ns
        decode_ns = (marked[1] - began[1]) * stands_ns // took_ns
        if decode_ns > dataset_ns:
            decode_ns = dataset_ns
        words[_BATCHES] += 1
        words[_INSIDE] += 1
        words[_WAIT] += took_ns
        words[_DECODE] += decode_ns
        words[_STORAGE] += dataset_ns - decode_ns
        words[_COLLATE] += stands_ns - dataset_ns
        entry.waited_ns += stands_ns
        if words is not self.led or (entry is not self.main and entry.waited_ns > self.main.waited_ns):
            self._lead(entry, entry.loader())


def ask(iterator, watched: IteratorStats) -> tuple:
    """Before a batch is asked for: its index, its task, batches that lie ready, and the time.

    Ready are those that came before their turn, those that a worker has put on the queue, and those pinned.
    """
    index, tasks = iterator._rcvd_idx, iterator._task_info
    ready, results = len(tasks) - iterator._tasks_outstanding, iterator._worker_result_queue
    try:
        ready += results.qsize()
    except NotImplementedError:
        pass  # Where sem_getvalue is missing.
    if iterator._data_queue is not results:
        ready += len(iterator._data_queue.queue)
    if index == 0:
        watched.floor_ns = watched.last_ns
    return index, tasks.get(index), max(ready, 0), perf_counter_ns()


def split(began_ns: int, now_ns: int, record: list[int]) -> tuple[int, ...]:
    """A wait by reason: storage, decode, collate, cpus, early (before the worker was at it), queue. They add up to it."""
    # Comparisons, since `min` and `max` would take half of this function's time.
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
    """The first run of free slots that is long enough, else the longest: where it begins and its length."""
    best, first = (0, 0), 0
    taken = sorted((e.first, e.first + e.granted) for e in entries if e.granted)
    for start, end in [*taken, (page.WORKERS_MAX, page.WORKERS_MAX)]:
        if start - first >= wanted:
            return first, start - first
        best = max(best, (first, start - first), key=lambda gap: gap[1])
        first = end
    return best
