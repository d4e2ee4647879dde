"""A pipeline on gloo, one stage a rank, of which one is slow in some steps and as fast as the others in the rest.

Arguments: the schedule's class in torch.distributed.pipelining, microbatches, the slow stage, seconds of each microbatch
forward and of backward, by how much more the slow stage takes for each, how many steps of a kind follow each other, and
how often each kind's turn comes. How long a rank had no core in each turn is left in `waits.RANK.json`.
"""

import itertools
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from support.core_wait import CoreWait
from torch import nn
from torch.distributed import pipelining

import goodput

WIDTH = 16


class Slow(torch.autograd.Function):
    """Takes as long as `work` says, forward and backward."""

    @staticmethod
    def forward(ctx, x, work):
        ctx.work = work
        time.sleep(work.seconds())
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.work.seconds())
        return gradient, None


class Stage(nn.Module):
    def __init__(self, usual: float, slower: float):
        super().__init__()
        self.usual, self.slower, self.is_slow = usual, slower, False
        self.layer = nn.Linear(WIDTH, WIDTH)

    def seconds(self) -> float:
        return self.usual + self.slower * self.is_slow

    def forward(self, x):
        return Slow.apply(self.layer(x), self)


def main():
    name, microbatches, slow, usual, slower, length, rounds = sys.argv[1:8]
    microbatches, length, rounds = int(microbatches), int(length), int(rounds)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    goodput.start(stage=rank, microbatches=microbatches, group=f"stage{rank}")
    torch.manual_seed(0)
    module = Stage(float(usual), float(slower) * (rank == int(slow)))
    stage = pipelining.PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = getattr(pipelining, name)(stage, microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    waited, waits = CoreWait(), []
    for step in range(2 * length * rounds):
        if step % length == 0:
            waits.append(waited.seconds())
        module.is_slow = step // length % 2 == 0
        inputs = [torch.ones(microbatches, WIDTH)] if rank == 0 else []
        last = {"target": torch.zeros(microbatches, WIDTH), "losses": []} if rank == ranks - 1 else {}
        schedule.step(*inputs, **last)
        optimizer.step()
        optimizer.zero_grad()
    waits.append(waited.seconds())
    with open(f"waits.{rank}.json", "w") as file:
        json.dump([after - before for before, after in itertools.pairwise(waits)], file)
    dist.barrier()
    goodput.stop("finished")
    # Now and then the destructor of a gloo group waits for ever for a thread of its own.
    os._exit(0)


if __name__ == "__main__":
    main()
