"""The same loader with other settings: its dataset, order, collate function and start method stay.

A variant goes on in the user's order where the one before it ended, over as many epochs as it takes, so that each
batch is a batch of the user's loader, and is not read twice (from the page cache) before the dataset is through.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from goodput.probe.loader.target import TargetError
from goodput.probe.loader.worker_times import WorkerInit

# A loader that delivers nothing for so long is given up.
SILENT_SECONDS_MAX = 120


class Continuing:
    """The batches of indices of a sampler, epoch after epoch, from where the last reader stopped.

    `samples` counts the indices taken.
    """

    def __init__(self, batches):
        self._batches = batches
        self._epoch: Iterator = iter(())
        self.samples = 0

    def __iter__(self):
        return self

    def __next__(self):
        found = next(self._epoch, None)
        if found is None:
            self._epoch = iter(self._batches)
            found = next(self._epoch, None)
            if found is None:
                raise TargetError("the loader has no batch")
        self.samples += len(found) if isinstance(found, list | tuple) else 1
        return found


class Variants:
    """Makes DataLoaders like `loader`. Iterable datasets have no order of indices, so each variant starts anew."""

    def __init__(self, loader: DataLoader, times_path: str):
        self.loader = loader
        self.is_iterable = isinstance(loader.dataset, IterableDataset)
        self._times_path = times_path
        self._order: dict[int | None, Continuing] = {}

    @property
    def samples_read(self) -> int:
        return sum(order.samples for order in self._order.values())

    @property
    def batch_size(self) -> int | None:
        """The batch size that can be changed; None for a batch sampler of the user's and without batches."""
        batches = self.loader.batch_sampler
        return (
            batches.batch_size
            if isinstance(batches, BatchSampler) and type(batches) is BatchSampler
            else None
        )

    def make(self, workers: int, batch_size: int | None = None, pin: bool | None = None) -> DataLoader:
        """A loader with this many workers. Raises ValueError for what PyTorch rejects."""
        source = self.loader
        options: dict = {
            "num_workers": workers,
            "collate_fn": source.collate_fn,
            "pin_memory": source.pin_memory if pin is None else pin,
            "generator": source.generator,
            "worker_init_fn": WorkerInit(self._times_path, source.worker_init_fn),
        }
        if workers:
            options["multiprocessing_context"] = source.multiprocessing_context
            options["prefetch_factor"] = source.prefetch_factor or 2
            options["timeout"] = SILENT_SECONDS_MAX
        if self.is_iterable:
            options |= {"batch_size": batch_size or source.batch_size, "drop_last": source.drop_last}
            options["persistent_workers"] = bool(workers)
        elif source.batch_sampler is not None:
            options["batch_sampler"] = self._indices(batch_size)
        else:
            options |= {"batch_size": None, "sampler": self._indices(None)}
        return DataLoader(source.dataset, **options)

    def _indices(self, batch_size: int | None) -> Continuing:
        if batch_size == self.batch_size:
            batch_size = None
        if batch_size not in self._order:
            batches = self.loader.batch_sampler or self.loader.sampler
            if batch_size is not None:
                batches = BatchSampler(self.loader.sampler, batch_size, True)
            self._order[batch_size] = Continuing(batches)
        return self._order[batch_size]
