"""In a worker process of PyTorch's DataLoader: how long each batch took to fetch and collate, and why.

In: the place that the trainer gave to this worker (a slot of its rank page), and the calls that torch's
`_worker_loop` makes. Out: the words of that slot (rank_page.loader_words). The worker never starts a page of its own.

How the parts are told apart: a task begins when `index_queue.get` returns it and ends when `data_queue.put` is
called; collating begins when the fetcher looks its `collate_fn` up. So nothing of ours is on the stack while the
user's code runs, and tracebacks are what they were. The dataset's part is split into CPU time of the worker's
thread (decoding and transforms), time in which it could run but had no core (/proc/<pid>/task/<tid>/schedstat, second
field, as in the kernel's sched-stats document) and the rest, in which it was blocked (storage, network, a lock).
Where other threads of the process have worked for over half of what was blocked, that counts as CPU time too.
About 10 us a batch. What the trainer waits for is loader_stats.py's.
"""

from __future__ import annotations

import mmap
import os
import sys
from _thread import get_ident
from importlib import import_module
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import NamedTuple

from goodput.rank_page import page
from goodput.rank_page.loader_words import LAST

# Positions in the arguments of torch's _worker_loop, which frameworks/torch/workers.py checks against its signature.
ARGUMENTS = {"dataset": 1, "index_queue": 2, "data_queue": 3, "worker_id": 10}
PLACE, STARTS, STARTUP, BATCHES, IDLE, DATASET, CPU, DELAY, COLLATE, WAITED = range(LAST)
HELPED_RATIO_MIN = 0.5


class Place(NamedTuple):
    """Where the workers of one iterator write: `granted` slots from word `base` on. `words` does not travel."""

    words: memoryview | None
    path: str
    inode: tuple[int, int]
    base: int
    granted: int
    number: int
    made_ns: int


class Loop:
    """Stands where `_worker_loop` stood, and calls it with its two queues watched.

    A forked worker finds its place under the thread that forked it, in the page it has inherited. For one that is
    spawned the place is pickled, and the page is opened by its path; a lock on it is the trainer's in any case,
    since another process's closing does not drop it.
    """

    def __init__(self, plain=None):
        self.plain = plain
        self.places: dict[int, Place] = {}

    def __reduce__(self):
        place = self.places.get(get_ident())
        return _arrive, (place and place._replace(words=None),)

    def __call__(self, *args, **kwargs):
        plain = self.plain or _upstream()
        safely(_start_no_page)
        try:
            args = self._watched(args)
        except Exception:
            pass  # The worker works unmeasured.
        return plain(*args, **kwargs)

    def _watched(self, args: tuple) -> tuple:
        place = self.places.get(get_ident())
        self.places.clear()
        worker = args[ARGUMENTS["worker_id"]]
        if place is None or worker >= place.granted:
            return args
        words = place.words if place.words is not None else _open(place)
        fetches = Fetches(words, place.base + worker * page.WORKER_WORDS, place, worker)
        dataset, index_queue = args[ARGUMENTS["dataset"]], args[ARGUMENTS["index_queue"]]
        watched = list(args)
        watched[ARGUMENTS["index_queue"]] = Tasks(index_queue, fetches)
        watched[ARGUMENTS["data_queue"]] = Results(args[ARGUMENTS["data_queue"]], fetches)
        fetch = import_module("torch.utils.data._utils.fetch")
        # In this process alone, so it is never put back.
        setattr(
            fetch._BaseDatasetFetcher, NAME, Collate(lambda fetcher: fetcher.dataset is dataset, fetches.mark)
        )
        return tuple(watched)


def _arrive(place: Place | None) -> Loop:
    loop = Loop()
    if place is not None:
        loop.places[get_ident()] = place
    return loop


def _upstream():
    """torch's own loop, also where this process has patches too because it imported the user's script."""
    found = import_module("torch.utils.data._utils.worker")._worker_loop
    return found.plain if isinstance(found, Loop) else found


def _start_no_page() -> None:
    """A worker is no rank, whatever loops it runs."""
    from goodput.sdk.recorder.recorder import State

    session = getattr(sys.modules.get("goodput"), "_session", None)
    if session is not None and session.recorder.state in (State.NOT_STARTED, State.FORKED_EARLY):
        session.recorder.set_state(State.FORKED)


def _open(place: Place) -> memoryview:
    """The page's words up to its histograms. Raises OSError where it is gone or another's by now."""
    fd = os.open(place.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != place.inode:
            raise OSError(f"{place.path} is another page by now")
        return memoryview(mmap.mmap(fd, 8 * page.W_HISTOGRAMS)).cast("Q")
    finally:
        os.close(fd)


NAME = "collate_fn"


class Collate:
    """A fetcher's attribute `collate_fn`, as it was, that calls `mark` when one of `ours` looks it up."""

    def __init__(self, ours, mark):
        self.ours, self.mark = ours, mark

    def __get__(self, fetcher, owner=None):
        if fetcher is None:
            return self
        try:
            found = fetcher.__dict__[NAME]
        except KeyError:
            raise AttributeError(f"{type(fetcher).__name__!r} object has no attribute {NAME!r}") from None
        if self.ours(fetcher):
            safely(self.mark)
        return found

    def __set__(self, fetcher, value):
        fetcher.__dict__[NAME] = value

    def __delete__(self, fetcher):
        del fetcher.__dict__[NAME]


def safely(function, *args) -> None:
    """Whatever goes wrong in measuring is no business of the worker's."""
    try:
        function(*args)
    except Exception:
        pass


class Tasks:
    """The index queue; a task that is taken begins a fetch."""

    def __init__(self, queue, fetches):
        self._queue, self._fetches = queue, fetches

    def get(self, *args, **kwargs):
        task = self._queue.get(*args, **kwargs)
        if type(task) is tuple:
            safely(self._fetches.begin)
        return task

    def __getattr__(self, name):
        return getattr(self._queue, name)


class Results:
    """The data queue; what is put there ends a fetch."""

    def __init__(self, queue, fetches):
        self._queue, self._fetches = queue, fetches

    def put(self, item, *args, **kwargs):
        safely(self._fetches.end, item)
        self._queue.put(item, *args, **kwargs)
        self._fetches.since_ns = perf_counter_ns()

    def __getattr__(self, name):
        return getattr(self._queue, name)


class Fetches:
    """One worker's slot. Moments are (wall, CPU of this thread, CPU of the process, run-queue delay) in ns."""

    def __init__(self, words: memoryview, at: int, place: Place, worker: int):
        self.words, self.at, self.made_ns = words, at, place.made_ns
        self.began: tuple | None = None
        self.marked: tuple | None = None
        self.since_ns = 0
        self.schedstat = _schedstat()
        words[at + PLACE] = place.number << 32 | worker << 16 | (self.schedstat >= 0)
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
        """The samples are there; what follows is collating. The last mark of a fetch counts."""
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
    """Wall time between two moments, and how much of it was CPU time and run-queue delay; together not more."""
    wall, cpu, process, delay = (after - before for before, after in zip(began, ended, strict=True))
    wall = max(wall, 0)
    cpu = min(max(cpu, 0), wall)
    delay = min(max(delay, 0), wall - cpu)
    blocked, others = wall - cpu - delay, process - cpu
    if others > HELPED_RATIO_MIN * blocked:
        cpu += min(others, blocked)
    return wall, cpu, delay


def _schedstat() -> int:
    """A descriptor of this thread's scheduler statistics, -1 where the kernel keeps none."""
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        if int(os.pread(fd, 96, 0).split()[2]) > 0:  # Without CONFIG_SCHED_INFO all three are 0.
            return fd
    except (OSError, ValueError, IndexError):
        pass
    os.close(fd)
    return -1
