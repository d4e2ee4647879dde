"""Waits divided by reason, fetches divided by resource, and the assignment of worker slots: hand-worked numbers."""

from __future__ import annotations

import gc
from array import array
from queue import Queue
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput.rank_page import page
from goodput.rank_page.loader_words import LOADER, WORKER, loader_of
from goodput.sdk.automatic.loader_stats import ENTRIES_MAX, LoaderStats, before_request, split
from goodput.sdk.automatic.loader_worker import OWNER, parts
from goodput.sdk.recorder.plain_training import FetchState


def record(done, dataset, cpu=0, delay=0, collate=0):
    return [1, done, dataset, cpu, delay, collate]


@pytest.mark.parametrize(
    ("waited", "of", "found"),
    [
        # (began, now), the batch, (storage, decode, collate, cpus, early, queue)
        ((100, 200), record(200, 100), (100, 0, 0, 0, 0, 0)),
        ((100, 200), record(200, 60, cpu=30, delay=15, collate=40), (15, 30, 40, 15, 0, 0)),
        # Half made at the request: its end is charged, collating first.
        ((150, 200), record(200, 60, cpu=30, collate=40), (5, 5, 40, 0, 0, 0)),
        # 10 in transfer, but the worker made it for as long as the wait.
        ((100, 200), record(190, 100, cpu=100), (0, 100, 0, 0, 0, 0)),
        # Made in 20, 50 in transfer: 30 before the worker began.
        ((100, 200), record(150, 20), (20, 0, 0, 0, 30, 50)),
        # Ready before the request: all is `queue`.
        ((100, 200), record(100, 90), (0, 0, 0, 0, 0, 100)),
        ((100, 200), record(7, 90, cpu=3), (0, 0, 0, 0, 0, 100)),
    ],
)
def test_wait_is_split_by_batch_record(waited, of, found):
    assert split(*waited, of) == found


@given(
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 3000),
    st.lists(st.integers(0, 2000), min_size=4, max_size=4),
)
def test_reasons_sum_to_wait(began, wait, done, times):
    found = split(began, began + wait, record(done, *times))
    assert sum(found) == wait and min(found) >= 0


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ((0, 0, 0, 0), (100, 30, 30, 20), (100, 30, 20)),
        # Coarse clocks: never more than the wall time.
        ((0, 0, 0, 0), (100, 110, 110, 50), (100, 100, 0)),
        ((0, 0, 0, 0), (100, 60, 60, 70), (100, 60, 40)),
        # The queue's feeder thread used 20 of the 70 blocked: still blocked.
        ((0, 0, 0, 0), (100, 30, 50, 0), (100, 30, 0)),
        # The decoder's own threads ran on four cores.
        ((0, 0, 0, 0), (100, 30, 310, 0), (100, 100, 0)),
        ((50, 5, 5, 5), (50, 5, 5, 5), (0, 0, 0)),
    ],
)
def test_fetch_is_split_by_resource(before, after, found):
    assert parts(before, after) == found


class Results:
    """A multiprocessing queue as `before_request` sees it."""

    def __init__(self, size):
        self.size = size

    def qsize(self):
        if self.size is None:
            raise NotImplementedError
        return self.size


@pytest.mark.parametrize(("put", "pinned", "ready"), [(0, None, 1), (2, None, 3), (None, None, 1), (1, 3, 5)])
def test_ready_batches_are_counted(put, pinned, ready):
    results, queue = Results(put), Queue()
    for batch in range(pinned or 0):
        queue.put(batch)
    iterator = SimpleNamespace(
        _rcvd_idx=3,
        _task_info={3: (0,), 4: (1, "data"), 5: (0,)},
        _tasks_outstanding=2,
        _worker_result_queue=results,
        _data_queue=results if pinned is None else queue,
    )
    watched = SimpleNamespace(floor_ns=0, last_ns=7)
    assert before_request(iterator, watched)[:3] == (3, (0,), ready) and watched.floor_ns == 0
    iterator._rcvd_idx = 0
    assert before_request(iterator, watched)[1] is None and watched.floor_ns == 7


# ---- Slots


class Loader:
    def __init__(self, workers, batch_size=2):
        self.num_workers, self.batch_size, self.dataset = workers, batch_size, []
        self.prefetch_factor, self.persistent_workers, self.pin_memory = 2, False, True


class Iterator:
    _shutdown, _rcvd_idx = False, 1


@pytest.fixture
def stats():
    return LoaderStats(SimpleNamespace(words=page.private_words()), FetchState())


def take(stats, loader):
    iterator = Iterator()
    return iterator, stats.entry_of(loader, iterator)


def slots(entry):
    return entry.first, entry.granted


def left_out(stats) -> int:
    return stats.recorder.words[page.W_LOADER + LOADER.index("left_out")]


def test_concurrent_loaders_share_slots(stats):
    loaders = [Loader(n) for n in (40, 20, 8, 1)]
    taken = [take(stats, loader) for loader in loaders]
    assert [slots(entry) for _, entry in taken] == [(0, 40), (40, 20), (60, 4), (0, 0)]
    assert left_out(stats) == 5 and stats.slots(taken[3][1], None) is None


def test_next_epoch_reuses_slots(stats):
    loader = Loader(3)
    one, first = take(stats, loader)
    both, second = take(stats, loader)
    assert slots(second) == (3, 3) and second.number != first.number
    one._shutdown = True
    again, entry = take(stats, loader)
    assert entry is first
    del both
    gc.collect()
    assert take(stats, loader)[1] is second and not again._shutdown


def test_recreated_loader_reuses_slots(stats):
    words, loader = stats.recorder.words, Loader(64)
    iterator, entry = take(stats, loader)
    at = page.W_WORKERS + page.WORKER_WORDS + OWNER
    words[at] = 77
    del loader
    iterator._shutdown = True
    again = Loader(64)
    iterator, same = take(stats, again)
    assert same is entry and words[at] == 77
    iterator._shutdown = True
    other = Loader(2)
    assert slots(take(stats, other)[1]) == (0, 2)
    assert words[at] == 0 and left_out(stats) == 0


def test_stale_worker_record_gives_no_reason(stats):
    words, loader = stats.recorder.words, Loader(2)
    iterator, entry = take(stats, loader)
    watched = stats.iterator_created(loader, entry, 0)
    last = page.W_WORKERS + page.WORKER_WORDS + len(WORKER)
    reasons = slice(page.W_LOADER + LOADER.index("wait_storage_ns"), page.W_LOADER + LOADER.index("workers"))

    def after(began, now, ready=0, task=(1,), index=0) -> list[int]:
        """The reasons of this wait: storage, decode, collate, cpus, queue, startup."""
        words[reasons] = memoryview(array("Q", [0] * 6))
        stats.batch_received(iterator, watched, (index, task, ready, began), now)
        return words[reasons].tolist()

    words[last : last + 6] = memoryview(array("Q", [1, 200, 60, 10, 20, 20]))
    assert after(100, 210) == [30, 10, 20, 20, 10, 20]
    assert words[page.W_WORKERS + page.WORKER_WORDS + WORKER.index("waited_ns")] == 110
    watched.floor_ns = 150  # Not the first epoch: time before the worker began is no process start.
    assert after(100, 210) == [30, 10, 20, 20, 30, 0]
    watched.floor_ns = 200
    assert after(100, 210) == [0] * 6
    assert after(100, 210, ready=1) == [0, 0, 0, 0, 110, 0]
    watched.floor_ns = 0
    words[last] = 2
    assert after(100, 210) == [0] * 6
    words[last] = 1
    assert after(100, 210, task=(1, "data"), ready=1) == [0, 0, 0, 0, 110, 0]
    assert after(100, 210, task=(2,)) == after(100, 210, task=None) == after(100, 210, index=5) == [0] * 6


def test_new_page_gets_loader_settings(stats):
    """After a page is replaced, iterators created before it still report."""
    loader = Loader(4)
    iterator, entry = take(stats, loader)
    watched = stats.iterator_created(loader, entry, 0)
    words = stats.recorder.words = page.private_words()
    stats.batch_received(iterator, watched, (0, None, 0, 0), 50)
    found = loader_of(words[page.W_LOADER : page.W_LOADER + len(LOADER)])
    assert (found["batches"], found["workers"], found["starts"]) == (1, 4, 0)


def test_entries_are_bounded(stats):
    for size in range(3 * ENTRIES_MAX):
        take(stats, Loader(0, size))
    assert len(stats.entries) <= ENTRIES_MAX


def test_page_has_settings_of_longest_waited_loader(stats):
    words, small, big = stats.recorder.words, Loader(1), Loader(4, batch_size=None)

    def settings():
        names = ("workers", "batch_size", "pinned", "main")
        return [words[page.W_LOADER + LOADER.index(name)] for name in names]

    keep = []
    for loader, now_ns in ((small, 50), (big, 90), (small, 110)):
        iterator, entry = take(stats, loader)
        keep.append(iterator)
        stats.batch_received(iterator, stats.iterator_created(loader, entry, 0), (0, None, 0, 0), now_ns)
        keep[-1]._shutdown = True
        expected = [1, 2, 1, 1] if loader is small else [4, 0, 1, 2]
        assert settings() == expected
