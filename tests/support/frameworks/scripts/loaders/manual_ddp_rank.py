"""One rank of a DistributedDataParallel training over gloo, instrumented by hand; run by test_slow_loader_rank.py.

DDP reduces gradients inside backward. A communication hook that waits in place makes that wait visible as a phase,
which nests in `backward` and is exclusive of it.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from support.core_wait import CoreWait
from torch.nn.parallel import DistributedDataParallel

import goodput

STEPS = 60

# Models live as long as the process: PyTorch joins a thread of gloo when it frees one, holding the interpreter's lock, for
# which that thread may wait.
KEPT = []


def all_reduce(_state, bucket):
    """A communication hook: the mean of the bucket over all ranks, timed."""
    with goodput.phase("communication"):
        dist.all_reduce(bucket.buffer())
    done = torch.futures.Future()
    done.set_result(bucket.buffer().div_(dist.get_world_size()))
    return done


class Slow(torch.utils.data.Dataset):
    """Random samples; `planted_seconds` is the delay so far, as measured."""

    def __init__(self, delay_seconds: float):
        self.delay_seconds, self.planted_seconds = delay_seconds, 0.0

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        if self.delay_seconds:
            began = time.perf_counter()
            time.sleep(self.delay_seconds)
            self.planted_seconds += time.perf_counter() - began
        return torch.randn(64), torch.randn(1)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    goodput.start()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    )
    KEPT.append(model)
    model.register_comm_hook(None, all_reduce)
    optimizer = torch.optim.Adam(model.parameters())
    dataset = Slow(float(sys.argv[2]) if rank == 1 else 0.0)
    waited = CoreWait()
    for inputs, targets in goodput.steps(torch.utils.data.DataLoader(dataset, batch_size=1), samples=1):
        with goodput.phase("forward"):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
        with goodput.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with goodput.phase("optimizer"):
            optimizer.step()
    dist.barrier()
    with open(f"{sys.argv[1]}/planted-{rank}", "w") as file:
        json.dump({"planted": dataset.planted_seconds, "core_wait": waited.seconds()}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
