"""One of two ranks that coalesces calls and trains in pipelines, with the Flight Recorder as oracle.

Writes by case what the Flight Recorder has, `flight-RANK.json`, and what the rank page has, `records-RANK.json`.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"

import goodput.auto  # noqa: I001
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed import _functional_collectives as functional

from goodput.rank_page.reader import Reader

directory, rank = Path(sys.argv[1]), int(os.environ["RANK"])
torch.set_num_threads(1)
torch.manual_seed(0)
MICROBATCHES, BATCH, WIDTH = 4, 8, 16


def coalesced() -> None:
    ones = [torch.ones(8), torch.ones(24)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for one in ones:
            dist.all_reduce(one)
    manager.wait()
    with dist._coalescing_manager():
        for one in ones:
            dist.all_gather_into_tensor(torch.zeros(2 * len(one)), one)
    with dist._coalescing_manager():
        for one in ones:
            dist.reduce_scatter_tensor(torch.zeros(len(one) // 2), one)
    for one in functional.all_reduce_coalesced(ones, "sum", dist.group.WORLD):
        assert one.sum() > 0


def layers(count: int) -> list[nn.Module]:
    return [nn.Linear(WIDTH, WIDTH) for _ in range(count)]


def pipeline(make_schedule, stages_each: int = 1) -> None:
    total = 2 * stages_each
    modules = layers(total)
    mine = [
        pipelining.PipelineStage(modules[at], at, total, torch.device("cpu")) for at in range(rank, total, 2)
    ]
    stages = mine if stages_each > 1 else mine[0]
    schedule = make_schedule(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([p for stage in mine for p in stage.submod.parameters()], 0.01)
    for _ in range(2):
        if rank == 0:
            schedule.step(torch.ones(BATCH, WIDTH))
        else:
            schedule.step(target=torch.zeros(BATCH, WIDTH), losses=[])
        optimizer.step()
        optimizer.zero_grad()


CASES = {
    "coalesced": coalesced,
    "gpipe": lambda: pipeline(pipelining.ScheduleGPipe),
    "1f1b": lambda: pipeline(pipelining.Schedule1F1B),
    "interleaved": lambda: pipeline(pipelining.ScheduleInterleaved1F1B, 2),
}


def main() -> None:
    dist.init_process_group("gloo")
    bounds, session, reader = [], goodput._session, None
    for name, case in CASES.items():
        case()
        dist.barrier()
        # Not closed: the descriptor is the session's.
        reader = reader or Reader(session.writer.path, session.writer.fd)
        bounds.append((name, reader.collectives().written))
    flight = torch._C._distributed_c10d._dump_fr_trace_json()
    (directory / f"flight-{rank}.json").write_bytes(flight)
    found, snapshot = reader.collectives(since=0), reader.snapshot()
    records = [{**record._asdict(), "flags": sorted(record.flags)} for record in found.records]
    document = {
        "bounds": bounds,
        "records": records,
        "groups": [group._asdict() for group in found.groups],
        "sums": [one._asdict() for one in found.sums],
        "dropped": found.dropped,
        "drops": snapshot.drops,
        "communication": dict(zip(snapshot.phases, snapshot.totals, strict=True))["communication"],
    }
    (directory / f"records-{rank}.json").write_text(json.dumps(document))
    dist.barrier()
    dist.destroy_process_group()


main()
