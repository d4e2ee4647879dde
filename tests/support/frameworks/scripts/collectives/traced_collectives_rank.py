"""One of two ranks that train with DistributedDataParallel and FSDP2 under torch.profiler, with goodput's records beside.

In: the folder to write to. Out: `trace-RANK.json`, and `records-RANK.json` with the records of the profiled steps. Rank 1
is late to every call by hand.
"""

import goodput.auto  # isort: skip  # before PyTorch, as in a script
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, schedule

import goodput
from goodput.rank_page.reader import Reader

directory, rank = Path(sys.argv[1]), int(os.environ["RANK"])
LATE_SECONDS, ACTIVE = 0.03, 3
torch.set_num_threads(1)
dist.init_process_group("gloo")
replicated = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
sharded = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
fully_shard(sharded)
optimizer = torch.optim.SGD([*replicated.parameters(), *sharded.parameters()], 0.01)


def records() -> int:
    with Reader(goodput._session.writer.path) as reader:
        return reader.collectives().written


def train() -> None:
    (replicated(torch.ones(4, 64)).sum() + sharded(torch.ones(4, 8)).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    half = torch.ones(50, dtype=torch.float16)
    dist.broadcast(half, 0)
    dist.all_gather_into_tensor(torch.zeros(100, dtype=torch.float16), half)
    dist.barrier()
    time.sleep(LATE_SECONDS * rank)
    dist.all_to_all_single(torch.zeros(8), torch.ones(8))


def main() -> None:
    done = [0]
    name = str(directory / f"trace-{rank}.json")
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=ACTIVE, repeat=1),
        on_trace_ready=lambda it: it.export_chrome_trace(name),
    ) as profiler:
        for _ in range(1 + ACTIVE):
            train()
            done.append(records())
            profiler.step()
    with Reader(goodput._session.writer.path) as reader:
        found = reader.collectives(since=done[1])
    wanted = [record for record in found.records if record.number <= done[1 + ACTIVE]]
    fields = ("operation", "bytes", "sequence")
    listed = [{field: getattr(record, field) for field in fields} for record in wanted]
    (directory / f"records-{rank}.json").write_text(json.dumps(listed))
    dist.barrier()
    dist.destroy_process_group()


main()
