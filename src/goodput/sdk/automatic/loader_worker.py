"""Measures in a DataLoader's worker process how long each batch took to fetch and collate, and why.

Times are written into the worker's slot of the trainer's rank page (rank_page/loader_words.py). A task begins when
`index_queue.get` returns it and ends when `data_queue.put` is called; collating begins when the fetcher looks up its
`collate_fn`. So no frame of goodput is on the stack while user code runs. The dataset's time is divided into CPU time
of the worker's thread (decoding, transforms), run-queue delay (/proc/thread-self/schedstat, second field; the
kernel's sched-stats document) and blocked time (storage, network, locks). If other threads of the process used CPU
for over half of the blocked time, that counts as CPU time too. About 10 us a batch.
"""

from __future__ import annotations

import mmap
import os
import sys
from _thread import get_ident
from collections.abc import Callable
from importlib import import_module
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any, NamedTuple

from goodput.rank_page import page
from goodput.rank_page.loader_words import LAST
from goodput.user_exceptions import reraise_from_handler

# Positions in the arguments of torch's _worker_loop, which frameworks/torch/workers.py checks against its signature.
ARGUMENTS = {"dataset": 1, "index_queue": 2, "data_queue": 3, "worker_id": 10}
OWNER, STARTS, STARTUP, BATCHES, IDLE, DATASET, CPU, DELAY, COLLATE, WAITED = range(LAST)
HELPED_RATIO_MIN = 0.5


class WorkerSlots(NamedTuple):
    """The slots of an iterator's workers: `granted` from word `base` on. `words` is not pickled."""

    words: memoryview | None
    path: str
    inode: tuple[int, int]
    base: int
    granted: int
    number: int
    made_ns: int


class MeasuredLoop:
    """Replaces `_worker_loop`: calls it with its two queues wrapped.

    A forked worker finds its slots under the id of the thread that forked it, in the inherited page. For a spawned one
    the slots are pickled and the page is opened by path; the trainer keeps its lock on the page, since another process's
    closing does not release it.
    """

    def __init__(self, original: Callable | None = None):
        self.original = original
        self.slots: dict[int, WorkerSlots | None] = {}

    def __reduce__(self):
        slots = self.slots.get(get_ident())
        return _unpickle, (slots and slots._replace(words=None),)

    def __call__(self, *args, **kwargs):
        original = self.original or _upstream()
        ignore_errors(_start_no_page)
        try:
            args = self._wrap_queues(args)
        except Exception as error:
            reraise_from_handler(error)  # Else the worker runs unmeasured.
        return original(*args, **kwargs)

    def _wrap_queues(self, args: tuple) -> tuple:
        slots = self.slots.get(get_ident())
        self.slots.clear()
        worker = args[ARGUMENTS["worker_id"]]
        if slots is None or worker >= slots.granted:
            return args
        words = slots.words if slots.words is not None else _open(slots)
        record = WorkerRecord(words, slots.base + worker * page.WORKER_WORDS, slots, worker)
        dataset, index_queue = args[ARGUMENTS["dataset"]], args[ARGUMENTS["index_queue"]]
        watched = list(args)
        watched[ARGUMENTS["index_queue"]] = TaskQueue(index_queue, record)
        watched[ARGUMENTS["data_queue"]] = ResultQueue(args[ARGUMENTS["data_queue"]], record)
        fetch = import_module("torch.utils.data._utils.fetch")
        # In the worker process only, so it is never restored.
        probe = CollateProbe(lambda fetcher: fetcher.dataset is dataset, record.mark)
        setattr(fetch._BaseDatasetFetcher, NAME, probe)
        return tuple(watched)


def _unpickle(slots: WorkerSlots | None) -> MeasuredLoop:
    loop = MeasuredLoop()
    if slots is not None:
        loop.slots[get_ident()] = slots
    return loop


def _upstream() -> Any:
    """torch's own loop; a spawned worker that imported the user's script has patches too."""
    found = import_module("torch.utils.data._utils.worker")._worker_loop
    return found.original if isinstance(found, MeasuredLoop) else found


def _start_no_page() -> None:
    """Nothing in a worker, which is no rank, may open a page."""
    from goodput.sdk.recorder.recorder import State

    session = getattr(sys.modules.get("goodput"), "_session", None)
    if session is not None and session.recorder.state in (State.NOT_STARTED, State.FORKED_EARLY):
        session.recorder.set_state(State.FORKED)


def _open(slots: WorkerSlots) -> memoryview:
    """The page's words up to its histograms. Raises OSError if the page is gone or was replaced."""
    fd = os.open(slots.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != slots.inode:
            raise OSError(f"{slots.path} was replaced by another page")
        return memoryview(mmap.mmap(fd, 8 * page.W_HISTOGRAMS)).cast("Q")
    finally:
        os.close(fd)


NAME = "collate_fn"


class CollateProbe:
    """A descriptor for a fetcher's `collate_fn`; calls `mark` at a lookup by a fetcher for which `is_ours` is true."""

    def __init__(self, is_ours, mark):
        self.is_ours, self.mark = is_ours, mark

    def __get__(self, fetcher, owner=None):
        if fetcher is None:
            return self
        try:
            found = fetcher.__dict__[NAME]
        except KeyError:
            raise AttributeError(f"{type(fetcher).__name__!r} object has no attribute {NAME!r}") from None
        if self.is_ours(fetcher):
            ignore_errors(self.mark)
        return found

    def __set__(self, fetcher, value):
        fetcher.__dict__[NAME] = value

    def __delete__(self, fetcher):
        del fetcher.__dict__[NAME]


def ignore_errors(function, *args) -> None:
    """Call the function; the worker continues whatever it raises."""
    try:
        function(*args)
    except Exception as error:
        reraise_from_handler(error)


class Queue:
    """Wraps a queue of the worker."""

    def __init__(self, queue, record):
        self._queue, self._record = queue, record

    def __getattr__(self, name):
        return getattr(self._queue, name)


class TaskQueue(Queue):
    """The index queue: a task that is taken begins a fetch."""

    def get(self, *args, **kwargs):
        task = self._queue.get(*args, **kwargs)
        if type(task) is tuple:
            ignore_errors(self._record.begin)
        return task


class ResultQueue(Queue):
    """The data queue: a put ends a fetch."""

    def put(self, item, *args, **kwargs):
        ignore_errors(self._record.end, item)
        self._queue.put(item, *args, **kwargs)
        self._record.since_ns = perf_counter_ns()


class WorkerRecord:
    """Writes one worker's slot. Moments are (wall, CPU of this thread, CPU of the process, run-queue delay) in ns."""

    def __init__(self, words: memoryview, at: int, slots: WorkerSlots, worker: int):
        self.words, self.at, self.made_ns = words, at, slots.made_ns
        self.began: tuple | None = None
        self.marked: tuple | None = None
        self.since_ns = 0
        self.schedstat = _schedstat()
        words[at + OWNER] = slots.number << 32 | worker << 16 | (self.schedstat >= 0)
        words[at + LAST] = 0
        words[at + STARTS] += 1

    def begin(self) -> None:
        """A task was taken."""
        began = self._moment()
        words, at = self.words, self.at
        if self.since_ns:
            words[at + IDLE] += began[0] - self.since_ns
        else:
            words[at + STARTUP] += max(began[0] - self.made_ns, 0)
        self.began, self.marked = began, None

    def mark(self) -> None:
        """The samples are fetched, collating follows. The last mark of a fetch counts."""
        if self.began is not None:
            self.marked = self._moment()

    def end(self, item) -> None:
        """The fetch is over, with a batch or an error."""
        began, marked = self.began, self.marked
        if began is None:
            return
        now_ns = perf_counter_ns()
        times = parts(began, marked or self._moment())
        collate_ns = now_ns - marked[0] if marked else 0
        words, at = self.words, self.at
        words[at + LAST] = 0
        for i, ns in enumerate((*times, collate_ns)):
            words[at + DATASET + i] += ns
            words[at + LAST + 2 + i] = ns
        words[at + LAST + 1] = now_ns
        words[at + LAST] = item[0] + 1
        words[at + BATCHES] += marked is not None
        self.began = self.marked = None

    def _moment(self) -> tuple[int, int, int, int]:
        delay_ns = 0
        if self.schedstat >= 0:
            delay_ns = int(os.pread(self.schedstat, 96, 0).split()[1])
        return perf_counter_ns(), thread_time_ns(), process_time_ns(), delay_ns


def parts(began: tuple, ended: tuple) -> tuple[int, int, int]:
    """(wall, CPU time, run-queue delay) between two moments in ns; the last two are at most the first."""
    wall, cpu, process, delay = (after - before for before, after in zip(began, ended, strict=True))
    wall = max(wall, 0)
    cpu = min(max(cpu, 0), wall)
    delay = min(max(delay, 0), wall - cpu)
    blocked, others = wall - cpu - delay, process - cpu
    if others > HELPED_RATIO_MIN * blocked:
        cpu += min(others, blocked)
    return wall, cpu, delay


def _schedstat() -> int:
    """A file descriptor of this thread's scheduler statistics, -1 if the kernel has none."""
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        reraise_from_handler(error)
        return -1
    has_figures = False
    try:
        has_figures = int(os.pread(fd, 96, 0).split()[2]) > 0  # All three are 0 without CONFIG_SCHED_INFO.
    except (OSError, ValueError, IndexError) as error:
        reraise_from_handler(error)
    finally:
        if not has_figures:
            os.close(fd)
    return fd if has_figures else -1
