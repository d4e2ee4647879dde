"""Wraps the iterators of DataLoaders and the loop of their workers, to find what the wait for a batch was for.

`__init__` registers an iterator with its place in the rank page, `_worker_loop` is measured in the worker
(loader_worker.py), and `_next_data` on the step thread (loader_stats.py). A loader without workers is measured on the
step thread by the wrapper of `__next__` in loader.py. Batches, their order, seeds and errors do not change.
"""

from __future__ import annotations

from _thread import get_ident
from time import perf_counter_ns, thread_time_ns

from goodput.sdk.automatic.loader_stats import LoaderStats, before_request
from goodput.sdk.automatic.loader_worker import ARGUMENTS, NAME, CollateProbe, MeasuredLoop
from goodput.user_exceptions import drop_own_frames, reraise_from_handler

MODULE = "torch.utils.data"
RELIES_ON = """torch/utils/data/dataloader.py: _MultiProcessingDataLoaderIter.__init__(loader) starts its workers with the
target _utils.worker._worker_loop, in the calling thread; _next_data returns the batch _rcvd_idx and increments it;
_task_info maps the batches requested and not yet returned to (worker,) or (worker, data), of which _tasks_outstanding
have no data; _worker_result_queue is a multiprocessing queue, and _data_queue the same or, pinned, a queue.Queue;
_SingleProcessDataLoaderIter._next_data calls _dataset_fetcher.fetch.
torch/utils/data/_utils/worker.py: _worker_loop(dataset_kind, dataset, index_queue, data_queue, ..., worker_id at 10)
takes a task as a tuple from index_queue.get and puts (index, data) on data_queue.
torch/utils/data/_utils/fetch.py: fetchers keep `dataset` and look up `self.collate_fn` when the samples are fetched."""
WATCHED = "_goodput_watched"


def apply(module, auto) -> None:
    dataloader, upstream = module.dataloader, module._utils.worker
    names = upstream._worker_loop.__code__.co_varnames
    if any(names[at] != name for name, at in ARGUMENTS.items()):
        raise TypeError(f"_worker_loop has other arguments: {', '.join(names[:11])}")
    stats, loop = LoaderStats(auto.recorder, auto.training.fetches), MeasuredLoop(upstream._worker_loop)
    auto.patches.replace(upstream, "_worker_loop", loop)
    for kind in (dataloader._MultiProcessingDataLoaderIter, dataloader._SingleProcessDataLoaderIter):
        _watch_creation(kind, auto, stats, loop)
    _with_workers(dataloader._MultiProcessingDataLoaderIter, auto, stats)
    _without_workers(module._utils.fetch, auto, stats)


def _watch_creation(kind, auto, stats: LoaderStats, loop: MeasuredLoop) -> None:
    make = kind.__init__

    @auto.patches.wrap("__init__", kind)
    def __init__(self, loader, *args, **kwargs):
        began_ns, entry = perf_counter_ns(), auto.attempt(_begin, auto, stats, loader, self)
        if entry is not None:
            try:
                loop.slots[get_ident()] = stats.slots(entry, auto.session.writer)
            except Exception as error:
                reraise_from_handler(error)
        try:
            make(self, loader, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            loop.slots.pop(get_ident(), None)
        if entry is None:
            return
        auto.attempt(lambda: setattr(self, WATCHED, stats.iterator_created(loader, entry, began_ns)))


def _with_workers(kind, auto, stats: LoaderStats) -> None:
    advance, recorder, waits = kind._next_data, auto.recorder, auto.loader.total

    @auto.patches.wrap("_next_data", kind)
    def _next_data(self):
        try:
            watched = self.__dict__.get(WATCHED)
            if watched is None or recorder.phases_off or recorder.current != waits:
                return advance(self)
            # A loader inside the dataset of another is part of that one's fetch.
            if recorder.thread != get_ident() or (auto.loaders and not auto.loaders.is_current(self)):
                return advance(self)
            request = None
            try:
                request = before_request(self, watched)
            except Exception as error:
                reraise_from_handler(error)
                _give_up(auto, self, error)
            # Not in the handler: an exception of the user's would have ours as its context.
            if request is None:
                return advance(self)
            try:
                data = advance(self)
            except BaseException:
                stats.fetch_raised(perf_counter_ns() - request[3])
                raise
            try:
                stats.batch_received(self, watched, request, perf_counter_ns())
            except Exception as error:
                reraise_from_handler(error)
                _give_up(auto, self, error)
            return data
        except BaseException as error:
            drop_own_frames(error)
            raise


def _without_workers(fetch, auto, stats: LoaderStats) -> None:
    recorder, fetches, probe = auto.recorder, auto.training.fetches, FetcherProbe(stats, fetch)

    def next_of(advance, iterator):
        """advance(iterator), in the phase `loader`; what it waits for is sampled."""
        watched = iterator.__dict__.get(WATCHED)
        # A loader inside the dataset of another is part of that one's fetch.
        if watched is None or watched.workers or stats.inside is not None or recorder.phases_off:
            return advance(iterator)
        if fetches.skips(iterator):
            began_ns = perf_counter_ns()
            try:
                batch = advance(iterator)
            except BaseException:
                stats.fetch_raised(perf_counter_ns() - began_ns)
                raise
            stats.batch_skipped(iterator, perf_counter_ns() - began_ns)
            return batch
        began = None
        try:
            stats.inside, stats.marked = getattr(iterator, "_dataset_fetcher", None), None
            probe.watch(stats.inside)
            began = perf_counter_ns(), thread_time_ns()
            batch = advance(iterator)
        except BaseException:
            if began is not None:
                stats.fetch_raised(perf_counter_ns() - began[0])
            raise
        finally:
            fetcher, stats.inside = stats.inside, None
            probe.leave(fetcher)
        now_ns = perf_counter_ns()
        try:
            stats.batch_made(iterator, watched, began, stats.marked or (now_ns, thread_time_ns()), now_ns)
        except Exception as error:
            reraise_from_handler(error)
            _give_up(auto, iterator, error)
        return batch

    auto.fetch_batch = next_of
    auto.iterator_changed = lambda iterator: stats.select(iterator.__dict__.get(WATCHED))


class FetcherProbe(CollateProbe):
    """A descriptor for a fetcher's `collate_fn`; its lookup shows that the samples of the batch have been fetched.

    It lies on a subclass that the fetcher has during a fetch. Setting and deleting it on the fetcher's own class would
    slow every batch, since the interpreter drops its caches of a class that changes.
    """

    def __init__(self, stats: LoaderStats, fetch):
        super().__init__(lambda fetcher: False, None)
        self.stats = stats
        self._subclasses = {}
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
            self._subclasses[kind] = type(kind.__name__, (kind,), {**names, NAME: self})

    def __get__(self, fetcher, owner=None):
        if fetcher is not None and fetcher is self.stats.inside:
            self.stats.marked = perf_counter_ns(), thread_time_ns()
        return super().__get__(fetcher, owner)

    def watch(self, fetcher) -> None:
        """Mark the fetcher's next fetch, if it is one of PyTorch's."""
        subclass = self._subclasses.get(type(fetcher))
        if subclass is not None:
            fetcher.__class__ = subclass

    def leave(self, fetcher) -> None:
        """Give the fetcher its own class back."""
        kind = type(fetcher)
        if vars(kind).get(NAME) is self:
            fetcher.__class__ = kind.__base__


def _begin(auto, stats: LoaderStats, loader, iterator):
    """The entry of an iterator that is being created; None if this is not the step thread."""
    if auto.on_step_thread() and not auto.training.fetches.fetching:
        return stats.entry_of(loader, iterator)


def _give_up(auto, iterator, error: Exception) -> None:
    iterator.__dict__.pop(WATCHED, None)
    auto.training.fetches.set_sampling(False, True)
    auto.session.warn(f"automatic: the loader is not measured: {type(error).__name__}: {error}")
