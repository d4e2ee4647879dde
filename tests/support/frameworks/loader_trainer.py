"""A training loop in this process that has only the loader patches."""

import os
import time

import torch
from torch.utils.data import dataloader as upstream
from torch.utils.data._utils import fetch as upstream_fetch
from torch.utils.data._utils import worker as upstream_worker

from goodput.rank_page.reader import Reader
from goodput.sdk.automatic.frameworks.torch import loader as loader_patch
from goodput.sdk.automatic.frameworks.torch import workers as patch
from goodput.sdk.automatic.step_detection import Automatic
from goodput.sdk.recorder.steps import steps
from goodput.sdk.reports.report import report
from goodput.sdk.startup.session import Session

PATCHED = (
    (upstream_worker, "_worker_loop"),
    (upstream._MultiProcessingDataLoaderIter, "__init__"),
    (upstream._MultiProcessingDataLoaderIter, "_next_data"),
    (upstream._SingleProcessDataLoaderIter, "__init__"),
    (upstream.DataLoader, "__iter__"),
    (upstream._BaseDataLoaderIter, "__next__"),
    (upstream_fetch._BaseDatasetFetcher, "collate_fn"),
)

FORKING: list[Session] = []
os.register_at_fork(after_in_child=lambda: [session.after_fork() for session in FORKING])


class Trainer:
    """A session with only the loader patches; `train` bounds the steps."""

    def __init__(self, directory):
        self.session = Session({"GOODPUT_DIR": str(directory)})
        self.session.start(run="r", rank=0, world_size=1)
        FORKING[:] = [self.session]
        self.auto = Automatic(self.session, lambda name: self.session.phases.define(name, None))
        loader_patch.apply(torch, self.auto)
        patch.apply(torch.utils.data, self.auto)
        self.auto.use_manual_steps()

    def train(self, loader, compute=0.0) -> list:
        batches = []
        for batch in steps(self.session.recorder, self.auto.loader, loader, 0):
            batches.append(batch)
            if compute:
                with self.auto.forward:
                    time.sleep(compute)
        return batches

    def snapshot(self):
        return Reader(self.session.writer.path, self.session.writer.fd).snapshot()

    def advice(self) -> str:
        causes = report(self.session).account["causes"]
        return next(cause["advice"] for cause in causes if cause["state"] == "loader")

    def sums(self) -> dict[str, int]:
        """The counters of all workers, summed."""
        workers = self.snapshot().workers
        return {name: sum(worker[name] for worker in workers) for name in workers[0]}


def patched() -> list:
    """The attributes that the patches replace, as they are now."""
    return [vars(owner).get(name) for owner, name in PATCHED]


UNPATCHED = patched()


def near(found: int, planted: int, percent: float = 5) -> bool:
    return abs(found - planted) <= planted * percent / 100
