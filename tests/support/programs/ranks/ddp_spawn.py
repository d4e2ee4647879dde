"""DistributedDataParallel on gloo in two spawned processes, of which rank 1 computes for longer each step."""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support.programs.stopwatch import Stopwatch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

# Models live as long as the process: PyTorch joins a thread of gloo when it frees one, holding the interpreter's lock, for
# which that thread may wait.
KEPT = []


class ToyModel(nn.Module):
    """Rank 1 runs on a throttled device: 15 ms more in each forward pass."""

    def __init__(self, delay_seconds):
        super().__init__()
        self.net1, self.net2 = nn.Linear(64, 256), nn.Linear(256, 8)
        self.delay_seconds = delay_seconds

    def forward(self, x):
        time.sleep(self.delay_seconds)
        return self.net2(torch.relu(self.net1(x)))


def train(rank, world_size, port, path):
    watch = Stopwatch()
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(10)
    data = TensorDataset(torch.randn(1280, 64), torch.randn(1280, 8))
    loader = DataLoader(data, 16, sampler=DistributedSampler(data))
    model = DistributedDataParallel(ToyModel(0.02 + 0.015 * rank))
    KEPT.append(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    for x, y in watch.each("loader", loader):
        with watch("compute"):
            optimizer.zero_grad()
            with watch("forward"):
                output = model(x)
            loss = nn.functional.mse_loss(output, y)
            loss.backward()
            optimizer.step()
        watch.step()
        losses.append(loss.item())
    watch.write(path.replace(".json", f".{rank}.json"), model.module, losses)
    dist.destroy_process_group()


def main():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    mp.spawn(train, args=(2, port, sys.argv[1]), nprocs=2)


if __name__ == "__main__":
    main()
