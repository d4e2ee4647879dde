"""A training script with one line of goodput: spawned workers, a loader inside the dataset, a worker that is killed.

It prints one JSON line: the advice for `loader`, the pages in its directory and the error of the killed worker.
"""

from __future__ import annotations

import json
import os

import goodput.auto  # isort: skip
import torch
from support.frameworks.loader_datasets import Nested, Planted
from torch.utils.data import DataLoader

import goodput


class Killed(Planted):
    def __getitem__(self, index):
        if index == 9:
            os.kill(os.getpid(), 9)
        return super().__getitem__(index)


class Phased(Nested):
    """What it tells goodput in a worker is nobody's."""

    def __getitem__(self, index):
        with goodput.phase("forward"):
            return super().__getitem__(index)


def main() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(
        Phased(40, cpu=0.02),
        batch_size=4,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.float()[:, None]).sum().backward()
            optimizer.step()
    error = ""
    try:
        list(
            DataLoader(
                Killed(16), batch_size=1, num_workers=2, multiprocessing_context="fork", collate_fn=len
            )
        )
    except RuntimeError as found:
        error = str(found)
    account = goodput.report().account
    advice = {cause["state"]: cause["advice"] for cause in account["causes"]}
    words = goodput._session.recorder.words
    print(
        json.dumps(
            {
                "advice": advice.get("loader", ""),
                "pages": len(os.listdir(os.environ["GOODPUT_DIR"])),
                "error": error,
                "drops": sum(words[goodput.sdk.startup.session.page.W_DROPS + i] for i in range(7)),
                "messages": sorted(goodput._session.messages.written),
                "steps": account["steps"]["kept"],
            }
        ),
        flush=True,
    )
    os._exit(0)  # torch's handler would raise the killed worker's error once more at the exit.


if __name__ == "__main__":
    main()
