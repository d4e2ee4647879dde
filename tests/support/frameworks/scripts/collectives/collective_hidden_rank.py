"""One of two ranks whose collectives run while it does something else; run by test_collective_hidden.py.

Of each step, an all-reduce by hand is waited for SLEEP_SECONDS after it was entered, which rank 1 does LATE_SECONDS
later; the reducer's first bucket is reduced while the backward pass sleeps for SLEEP_SECONDS. Writes `hidden-RANK.json`.
"""

import goodput.auto  # isort: skip
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import goodput
from goodput.rank_page.collective_records import operation_rows
from goodput.rank_page.reader import Reader

STEPS, SLEEP_SECONDS, LATE_SECONDS = 5, 0.03, 0.25


class SleepsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SLEEP_SECONDS)
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 1)

    def forward(self, inputs):
        return self.second(SleepsBackward.apply(self.first(inputs)))


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, hand = dist.get_rank(), dist.new_group([0, 1], group_desc="hand")
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        model(torch.ones(4, 16)).sum().backward()
        time.sleep(LATE_SECONDS * rank)
        work = dist.all_reduce(torch.ones(8), group=hand, async_op=True)
        time.sleep(SLEEP_SECONDS)
        work.wait()
        optimizer.step()
        optimizer.zero_grad()
    with Reader(goodput._session.writer.path, goodput._session.writer.fd) as reader:
        rows = [row._asdict() for row in operation_rows(reader.collectives())]
    planted = {"steps": STEPS, "sleep_ns": int(SLEEP_SECONDS * 1e9), "late_ns": int(LATE_SECONDS * 1e9)}
    (directory / f"hidden-{rank}.json").write_text(json.dumps({"rows": rows, **planted}))
    dist.barrier()
    dist.destroy_process_group()


main(Path(sys.argv[1]))
