"""A script that spawns two ranks by torch.multiprocessing, each a DistributedDataParallel training with goodput.auto
and not a word more; run by test_slow_loader_rank.py.

In: the folder to write to, a free port, seconds by which rank 1's loader is late. Out: `planted-RANK`, seconds.
"""

import goodput.auto  # isort: skip  # noqa: F401
import json
import sys
import time

import torch
import torch.distributed as dist
from support.core_wait import CoreWait
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 25

# Models live as long as the process: PyTorch joins a thread of gloo when it frees one, holding the interpreter's lock, for
# which that thread may wait.
KEPT = []


class Slow(Dataset):
    """Random samples; `planted_seconds` is the delay so far, as measured."""

    def __init__(self, delay_seconds: float):
        self.delay_seconds, self.planted_seconds = delay_seconds, 0.0

    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        if self.delay_seconds and not index % 4:
            began = time.perf_counter()
            time.sleep(self.delay_seconds)
            self.planted_seconds += time.perf_counter() - began
        return torch.randn(64), torch.randn(1)


def train(rank: int, directory: str, port: str, delay_seconds: str) -> None:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    # Before the rank is known.
    optimizer = torch.optim.Adam(model.parameters())
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = DistributedDataParallel(model)
    KEPT.append(model)
    dataset = Slow(float(delay_seconds) if rank == 1 else 0.0)
    waited = CoreWait()
    for inputs, targets in DataLoader(dataset, batch_size=4):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    with open(f"{directory}/planted-{rank}", "w") as file:
        json.dump({"planted": dataset.planted_seconds, "core_wait": waited.seconds()}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=tuple(sys.argv[1:]), nprocs=2)
