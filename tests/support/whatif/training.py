"""A training on gloo with delays that are planted in some steps and really absent in others.

Arguments: the seconds of each kind of delay as JSON, how many steps of a kind follow each other, how often all kinds are
gone through, how often at most, and a factor of the seconds of usual work. The kinds of steps take turns, so that whatever
else the machine does is shared by all of them. Work is sleep for the most part, so that ranks need few cores. How long a
rank had no core in each turn is left in `waits.RANK.json`; all kinds are gone through again until half as many turns of each
as were requested were quiet.
"""

import itertools
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from support.core_wait import CoreWait
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import goodput

SECONDS = {"loader": 0.01, "forward": 0.04}
CHECKPOINT_EVERY = 5
# In a quiet turn ranks were without a core for at most so long in a step, all together.
QUIET_SECONDS = 0.005


class Plan:
    """The delay of a step: `kinds` maps a name to [where, rank or None for all, seconds]."""

    def __init__(self, kinds: dict, length: int, rank: int, factor: float):
        self.usual = {where: factor * seconds for where, seconds in SECONDS.items()}
        self.kinds, self.length, self.rank = list(kinds.values()), length, rank
        self.step = 0

    def delay(self, where: str, step: int) -> float:
        kind, rank, seconds = self.kinds[step // self.length % len(self.kinds)]
        return seconds if kind == where and rank in (None, self.rank) else 0.0


class Batches(IterableDataset):
    def __init__(self, plan: Plan, count: int):
        self.plan, self.count = plan, count

    def __iter__(self):
        for step in range(self.count):
            time.sleep(max(self.plan.usual["loader"] + self.plan.delay("loader", step), 0.0))
            yield torch.full((16,), float(step % 7))


class Model(torch.nn.Module):
    def __init__(self, plan: Plan):
        super().__init__()
        self.plan, self.layer = plan, torch.nn.Linear(16, 16)

    def forward(self, x):
        time.sleep(self.plan.usual["forward"] + self.plan.delay("forward", self.plan.step))
        return self.layer(x).square().mean()


def is_enough(waits: list[float], kinds: int, length: int, turns: int) -> bool:
    """Whether so many turns of each kind were quiet; the same on all ranks."""
    in_turns = torch.tensor(waits).diff()
    dist.all_reduce(in_turns)
    return bool(((in_turns.view(-1, kinds) / length <= QUIET_SECONDS).sum(0) >= turns).all())


def main():
    kinds, length, rounds, rounds_max = json.loads(sys.argv[1]), *map(int, sys.argv[2:5])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    plan = Plan(kinds, length, rank, float(sys.argv[5]))
    model = DistributedDataParallel(Model(plan))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    waited, waits = CoreWait(), []
    for step, batch in enumerate(
        DataLoader(Batches(plan, length * rounds_max * len(kinds)), batch_size=None)
    ):
        plan.step = step
        if step % length == 0:
            waits.append(waited.seconds())
            done, rest = divmod(len(waits) - 1, len(kinds))
            if done >= rounds and not rest and is_enough(waits, len(kinds), length, (rounds + 1) // 2):
                break
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        seconds = plan.delay("checkpoint", step)
        if seconds and step % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            with goodput.checkpoint(step):
                time.sleep(seconds)
    else:
        waits.append(waited.seconds())
    with open(f"waits.{rank}.json", "w") as file:
        json.dump([after - before for before, after in itertools.pairwise(waits)], file)
    dist.barrier()
    goodput.stop("finished")
    # Now and then the destructor of a gloo group waits for ever for a thread of its own.
    os._exit(0)


if __name__ == "__main__":
    main()
