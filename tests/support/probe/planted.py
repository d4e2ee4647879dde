"""Data loaders with a planted limit of which the knee follows from the throttle alone.

A batch takes a worker `own` seconds that workers spend side by side, and `serial` seconds of something that only one
at a time can have: a lock, a server of files, a core, the copy of the main process. So a loader is fastest from
ceil((own + serial) / serial) workers on; for the copy, which is not the worker's, from ceil(own / serial) on. A
plant without a serial part has its knee at the highest number of workers.

Batches are of 2 samples; the dataset's time is spent on the first of them.
"""

from __future__ import annotations

import fcntl
import math
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

BATCH = 2
WORKERS_MAX = 12


@dataclass(frozen=True)
class Plant:
    """One planted limit. `by` is how it is made: see the functions below."""

    name: str
    limit: str
    by: str
    own: float
    serial: float
    workers_max: int = WORKERS_MAX

    @property
    def knee(self) -> int:
        if not self.serial:
            return self.workers_max
        whole = self.own if self.limit == "copy" else self.own + self.serial
        return math.ceil(whole / self.serial - 1e-9)


# Half of a worker away from where ceil changes, so that the throttle's own cost does not decide.
PLANTS = (
    Plant("a third of a core", "cpu", "core", 0.050, 0.020),
    Plant("a third of a core, used nearly always", "cpu", "core", 0.024, 0.030),
    Plant("a slow file server", "storage", "server", 0.035, 0.010),
    Plant("a file server that only one uses", "storage", "server", 0.010, 0.025),
    Plant("distant files", "storage", "sleep", 0.060, 0.0, 4),
    Plant("a lock between processes", "lock", "lock", 0.025, 0.010),
    Plant("a locked file", "lock", "flock", 0.054, 0.012),
    Plant("a lock held nearly always", "lock", "lock", 0.010, 0.020),
    Plant("collate under a lock", "collate", "collate_lock", 0.030, 0.012),
    Plant("slow collate", "collate", "collate_sleep", 0.050, 0.0, 4),
    Plant("a slow copy", "copy", "copy", 0.070, 0.020),
    Plant("a copy slower than a worker", "copy", "copy", 0.020, 0.030),
)


class Planted(Dataset):
    """Item `n` is a tensor of `n`s."""

    def __init__(self, plant: Plant, length: int = 4096):
        self.plant, self.length = plant, length
        self.lock = multiprocessing.Lock()
        self.file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed with the dataset
        self.server = FileServer(plant.serial) if plant.by == "server" else None
        self.core = CpuQuota() if plant.by == "core" else None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        if index % BATCH == 0:
            self._spend()
        return torch.full((4,), index)

    def _spend(self) -> None:
        plant = self.plant
        if plant.by != "collate_sleep":
            time.sleep(plant.own)
        if self.core is not None:
            self.core.compute(plant.serial)
        elif plant.by == "lock":
            with self.lock:
                time.sleep(plant.serial)
        elif plant.by == "flock":
            with open(self.file.name, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(plant.serial)
        elif self.server is not None:
            self.server.read()

    def collate(self, items: list):
        if self.plant.by == "collate_lock":
            with self.lock:
                time.sleep(self.plant.serial)
        elif self.plant.by == "collate_sleep":
            time.sleep(self.plant.own)
        return Batch(torch.stack(items), self.plant.serial if self.plant.by == "copy" else 0.0)

    def close(self) -> None:
        self.file.close()
        if self.server is not None:
            self.server.close()
        if self.core is not None:
            self.core.close()


class Batch:
    """A tensor whose copy to a device takes so many seconds."""

    def __init__(self, values: torch.Tensor, seconds: float):
        self.values, self.seconds = values, seconds

    def __len__(self) -> int:
        return len(self.values)

    def to(self, *_, **__) -> Batch:
        time.sleep(self.seconds)
        return self


def loader(plant: Plant, **options) -> DataLoader:
    """In the order of the indices; the caller closes `.dataset`."""
    dataset = Planted(plant)
    return DataLoader(dataset, batch_size=BATCH, collate_fn=dataset.collate, **options)


class CpuQuota:
    """A control group with a third of a core, which a busy machine has too. Without one a whole core, the last.

    A quota and not a core, since of a core that others use more processes get more. Of control groups of version 1
    or 2, which root alone may make.
    """

    PERIOD_US, QUOTA_US = 3_000, 1_000
    FOLDERS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))

    def __init__(self):
        self._group: Path | None = None
        self._joined = 0
        for folder in self.FOLDERS:
            group = folder / f"goodput-test-{os.getpid()}-{time.monotonic_ns()}"
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                if (group / "cpu.max").exists():
                    (group / "cpu.max").write_text(f"{self.QUOTA_US} {self.PERIOD_US}")
                else:
                    (group / "cpu.cfs_period_us").write_text(str(self.PERIOD_US))
                    (group / "cpu.cfs_quota_us").write_text(str(self.QUOTA_US))
            except OSError:
                group.rmdir()
                continue
            self._group = group
            return

    def compute(self, seconds: float) -> None:
        """As much CPU time as the quota, or the core, gives in so many seconds."""
        if get_worker_info() is None:
            time.sleep(seconds)  # The main process stays out of the group.
            return
        if self._joined != os.getpid():
            self._joined = os.getpid()
            if self._group is not None:
                (self._group / "cgroup.procs").write_text(str(self._joined))
            else:
                os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        share = self.QUOTA_US / self.PERIOD_US if self._group is not None else 1.0
        end = time.thread_time() + seconds * share
        while time.thread_time() < end:
            pass

    def close(self) -> None:
        """Workers must have ended."""
        if self._group is not None:
            self._group.rmdir()


class FileServer:
    """Answers one reader after the other, each after so many seconds, over a Unix socket: storage of one spindle."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._folder = tempfile.TemporaryDirectory()
        self._address = os.path.join(self._folder.name, "files")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._address)
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                reader, _ = self._listener.accept()
            except OSError:
                return
            time.sleep(self._seconds)
            with reader:
                reader.sendall(b"data")

    def read(self) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(self._address)
            return connection.makefile("rb").read()

    def close(self) -> None:
        # Closing alone would leave the thread in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._folder.cleanup()
