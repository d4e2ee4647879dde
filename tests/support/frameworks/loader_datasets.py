"""Datasets with planted trouble, importable by spawned workers. Each keeps its own count of the time it planted.

The count lies in an array shared by all processes: ns of all in the dataset, CPU ns of decoding, ns of collating. The
machine may be busy, so what was planted is what happened, not what was requested.
"""

from __future__ import annotations

import random
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

ALL, DECODED, COLLATED = range(3)


def new_counts():
    return torch.zeros((3, 9), dtype=torch.int64).share_memory_()


def me() -> int:
    """A column of the counts, so that no two processes add to one number."""
    info = torch.utils.data.get_worker_info()
    return info.id + 1 if info else 0


def burn(seconds: float) -> int:
    """Use this much CPU time of the thread; returns the ns used."""
    began = time.thread_time_ns()
    while time.thread_time_ns() - began < seconds * 1e9:
        pass
    return time.thread_time_ns() - began


class Planted(Dataset):
    """`count` samples; each sleeps, then computes. `size` is the floats of one."""

    def __init__(self, count=32, sleep=0.0, cpu=0.0, size=4):
        self.count, self.sleep, self.cpu, self.size, self.planted = count, sleep, cpu, size, new_counts()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        began = time.perf_counter_ns()
        time.sleep(self.sleep)
        if self.cpu:
            self.planted[DECODED, me()] += burn(self.cpu)
        sample = torch.full((self.size,), float(index))
        self.planted[ALL, me()] += time.perf_counter_ns() - began
        return sample


class Batched(Planted):
    """The same by `__getitems__`."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Streamed(IterableDataset):
    """The samples of another, shared out among the workers."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (self.inner[index] for index in range(first, len(self.inner), step))


class Drawn(Dataset):
    """Samples of all three generators, and of the worker's seed."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        import numpy

        info = torch.utils.data.get_worker_info()
        seed = info.seed if info else 0
        return index, seed % 1000, random.random(), float(torch.rand(())), float(numpy.random.rand())


class Broken(Planted):
    def __getitem__(self, index):
        if index == 5:
            raise KeyError("no sample 5")
        return super().__getitem__(index)


class Nested(Planted):
    """Each sample is a sum over a loader of its own, which has no workers."""

    def __getitem__(self, index):
        inner = DataLoader(Planted(4, cpu=self.cpu / 4), batch_size=2)
        return sum(float(batch.sum()) for batch in inner) + index


class SlowCollate:
    """A collate_fn that computes for `cpu` and sleeps for `sleep` seconds."""

    def __init__(self, cpu=0.0, sleep=0.0):
        self.cpu, self.sleep, self.planted = cpu, sleep, new_counts()

    def __call__(self, samples):
        began = time.perf_counter_ns()
        burn(self.cpu)
        time.sleep(self.sleep)
        batch = torch.stack(samples)
        self.planted[COLLATED, me()] += time.perf_counter_ns() - began
        return batch


class BrokenCollate:
    def __call__(self, samples):
        raise TypeError("cannot be a batch")


def reseed(worker):
    """A worker_init_fn that changes the seeds."""
    random.seed(worker + 7)
    torch.manual_seed(worker + 7)
