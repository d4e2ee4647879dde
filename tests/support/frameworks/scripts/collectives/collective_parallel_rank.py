"""One of four ranks that trains with every kind of parallelism that PyTorch has, with the Flight Recorder as oracle.

Writes what the Flight Recorder has, `flight-RANK.json`, and what the rank page has, `records-RANK.json`: each call with the
case that made it.
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
from torch.distributed import _functional_collectives as functional
from torch.distributed import pipelining
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from goodput.rank_page.reader import Reader

directory, rank, size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
torch.manual_seed(0)
MICROBATCHES, BATCH, WIDTH = 4, 8, 16
TENSOR_PARALLEL = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def train(model, batch=None, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        model(torch.ones(4, 8) if batch is None else batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, values):
        return self.narrow(torch.relu(self.wide(self.norm(values))))


# -- calls


def coalesced(mesh) -> None:
    ones = [torch.ones(8), torch.ones(24)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for one in ones:
            dist.all_reduce(one)
    manager.wait()
    with dist._coalescing_manager():
        for one in ones:
            dist.all_gather_into_tensor(torch.zeros(size * len(one)), one)
    with dist._coalescing_manager():
        for one in ones:
            dist.reduce_scatter_tensor(torch.zeros(len(one) // size), one)
    for one in functional.all_reduce_coalesced(ones, "sum", dist.group.WORLD):
        assert one.sum() > 0


def asynchronous(mesh) -> None:
    """Several calls under way at once, waited for in another order."""
    works = [dist.all_reduce(torch.ones(n), async_op=True) for n in (1, 2, 3)]
    works.append(dist.broadcast(torch.ones(4, dtype=torch.bfloat16), 2, async_op=True))
    for work in reversed(works):
        work.wait()
    dist.all_gather([torch.zeros(3) for _ in range(size)], torch.ones(3), async_op=True).wait()
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(parts, [torch.ones(2) for _ in range(size)])
    dist.all_gather_object([None] * size, {"rank": rank})
    dist.broadcast_object_list([rank], 0)


def to_neighbours(mesh) -> None:
    """A ring by batch_isend_irecv, calls in a group of two ranks, and several senders to one receiver."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for length in (3, 7):
        double = torch.ones(length, dtype=torch.float64)
        operations = [
            dist.P2POp(dist.isend, torch.ones(length), right),
            dist.P2POp(dist.irecv, torch.zeros(length), left),
            dist.P2POp(dist.isend, double, left),
            dist.P2POp(dist.irecv, double.clone(), right),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    odd = dist.new_group([1, 3], group_desc="odd")
    if rank in (1, 3):
        (dist.send if rank == 1 else dist.recv)(torch.ones(5), 4 - rank, group=odd)
        call = dist.isend if rank == 3 else dist.irecv
        call(torch.ones(6, dtype=torch.int64), 4 - rank, group=odd).wait()
        dist.all_reduce(torch.ones(9), group=odd)
    if rank == 0:
        for other in range(1, size):
            dist.recv(torch.zeros(2), other)
        dist.send_object_list([{"a": 1}], 1)
    else:
        dist.send(torch.ones(2), 0)
    if rank == 1:
        dist.recv_object_list([None], 0)


def functionally(mesh) -> None:
    world = dist.group.WORLD
    assert functional.all_reduce(torch.ones(8), "sum", world).sum() == 8 * size
    functional.broadcast(torch.ones(6), 1, world).sum()
    functional.reduce_scatter_tensor(torch.ones(4 * size), "sum", 0, world).sum()
    functional.all_gather_tensor(torch.ones(5), 0, world).sum()
    functional.all_to_all_single(torch.ones(2 * size), None, None, world).sum()
    leaf = torch.ones(5, requires_grad=True)
    functional.all_gather_tensor_autograd(leaf, 0, world).sum().backward()
    leaf = torch.ones(2 * size, requires_grad=True)
    functional.all_to_all_single_autograd(leaf, None, None, world).sum().backward()


# -- trainings


def data_parallel(mesh) -> None:
    train(nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=0.0001))
    group = mesh.get_group("data")
    train(nn.parallel.DistributedDataParallel(nn.Linear(8, 8), process_group=group))


def fsdp1(mesh) -> None:
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        on_cpu = {"device_id": torch.device("cpu"), "sharding_strategy": strategy}
        train(FullyShardedDataParallel(layers(), **on_cpu))
    on_cpu["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
    train(FullyShardedDataParallel(layers(), device_mesh=mesh, **on_cpu))


def fsdp2(mesh) -> None:
    model = layers()
    for part in (model[0], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (size,)))
    train(model)
    model = layers()
    fully_shard(model, mesh=mesh)  # hybrid
    train(model)


def tensor_parallel(mesh) -> None:
    train(parallelize_module(layers(), mesh["tensor"], TENSOR_PARALLEL))
    plan = {
        "norm": SequenceParallel(),
        "wide": ColwiseParallel(input_layouts=Shard(1)),
        "narrow": RowwiseParallel(output_layouts=Replicate()),
    }
    train(parallelize_module(Block(), mesh["tensor"], plan), torch.ones(2, 4, 8))
    spread = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Replicate()])
    assert spread.redistribute(placements=[Replicate(), Shard(1)]).full_tensor().sum() == 64


def both(mesh) -> None:
    """FSDP2 over tensor parallelism."""
    model = parallelize_module(layers(), mesh["tensor"], TENSOR_PARALLEL)
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh["data"])
    train(model)


def pipeline(make_schedule, stages_each: int = 1, group=None) -> None:
    me, ranks = dist.get_rank(group), dist.get_world_size(group)
    total = ranks * stages_each
    modules = [nn.Linear(WIDTH, WIDTH) for _ in range(total)]
    mine = [
        pipelining.PipelineStage(modules[at], at, total, torch.device("cpu"), group=group)
        for at in range(me, total, ranks)
    ]
    stages = mine if stages_each > 1 else mine[0]
    schedule = make_schedule(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([p for stage in mine for p in stage.submod.parameters()], 0.01)
    for _ in range(2):
        first = (torch.ones(BATCH, WIDTH),) if me == 0 else ()
        last = {"target": torch.zeros(BATCH, WIDTH), "losses": []} if me == ranks - 1 else {}
        schedule.step(*first, **last)
        optimizer.step()
        optimizer.zero_grad()


CASES = {
    "coalesced": coalesced,
    "asynchronous": asynchronous,
    "neighbours": to_neighbours,
    "functional": functionally,
    "ddp": data_parallel,
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "tensor": tensor_parallel,
    "fsdp2 and tensor": both,
    "gpipe": lambda mesh: pipeline(pipelining.ScheduleGPipe),
    "1f1b": lambda mesh: pipeline(pipelining.Schedule1F1B),
    "interleaved": lambda mesh: pipeline(pipelining.ScheduleInterleaved1F1B, 2),
    "zero bubble": lambda mesh: pipeline(pipelining.ScheduleInterleavedZeroBubble, 2),
    "two pipelines": lambda mesh: pipeline(pipelining.Schedule1F1B, group=mesh.get_group("tensor")),
}


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    session, records, flight, declared = goodput._session, [], [], {}
    reader = found = None
    for name, case in CASES.items():
        case(mesh)
        dist.barrier()
        # Not closed: the descriptor is the session's.
        reader = reader or Reader(session.writer.path, session.writer.fd)
        found = reader.collectives(since=found.written if found else 0)
        records += [{**one._asdict(), "flags": sorted(one.flags), "case": name} for one in found.records]
        identity = reader.snapshot().identity
        declared[name] = [identity.get("stage"), identity.get("microbatches")]
        entries = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"]
        last = flight[-1]["record_id"] if flight else -1
        flight += [{**entry, "case": name} for entry in entries if entry["record_id"] > last]
    (directory / f"flight-{rank}.json").write_text(json.dumps(flight))
    snapshot = reader.snapshot()
    document = {
        "written": found.written,
        "declared": declared,
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
