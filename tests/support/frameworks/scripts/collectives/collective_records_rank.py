"""One of two ranks that communicates in every way that PyTorch has, with the Flight Recorder as oracle.

Writes what the Flight Recorder has, `flight-RANK.json`, and what the rank page has, `records-RANK.json`.
"""

import gc
import json
import os
import sys
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "400"

import goodput.auto  # noqa: I001
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from support.core_wait import CoreWait

from goodput.rank_page.reader import Reader

directory, rank = Path(sys.argv[1]), int(os.environ["RANK"])
torch.set_num_threads(1)
torch.manual_seed(0)


def by_hand(group) -> None:
    ones, both = torch.ones(8), [torch.zeros(8), torch.zeros(8)]
    dist.all_reduce(ones, group=group)
    dist.all_reduce(ones.double(), group=group, async_op=True).wait()
    dist.broadcast(ones, 0, group=group)
    dist.reduce(ones, 1, group=group)
    dist.all_gather(both, ones, group=group)
    dist.all_gather_into_tensor(torch.zeros(16), ones, group=group)
    dist.reduce_scatter(torch.zeros(8), both, group=group)
    dist.reduce_scatter_tensor(torch.zeros(8), torch.ones(16), group=group)
    dist.gather(ones, both if rank == 0 else None, 0, group=group)
    dist.scatter(torch.zeros(8), both if rank == 0 else None, 0, group=group)
    dist.all_to_all_single(torch.zeros(8), ones, group=group)
    dist.barrier(group=group)
    dist.all_gather_object([None, None], {"rank": rank}, group=group)


def to_each_other() -> None:
    there, back = torch.zeros(4), torch.ones(4, dtype=torch.int64)
    (dist.send if rank == 0 else dist.recv)(there, 1 - rank)
    send, receive = dist.isend(back, 1 - rank), dist.irecv(torch.zeros(4, dtype=torch.int64), 1 - rank)
    send.wait()
    receive.wait()
    operations = [
        dist.P2POp(dist.isend, there, 1 - rank),
        dist.P2POp(dist.irecv, torch.zeros(4), 1 - rank),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def train(model, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))


def functionally(mesh) -> None:
    total = functional.all_reduce(torch.ones(8), "sum", dist.group.WORLD)
    assert total.sum() == 16
    parts = functional.reduce_scatter_tensor(torch.ones(16), "sum", 0, dist.group.WORLD)
    assert functional.all_gather_tensor(parts, 0, dist.group.WORLD).sum() == 32
    shares = DTensor.from_local(torch.ones(4), mesh, [Shard(0)])
    assert shares.redistribute(mesh, [Replicate()]).to_local().sum() == 8
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    train(parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}), 2)


def with_hook(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


def off() -> None:
    """Without records: PyTorch's methods are as they were, and nothing is read."""
    before = dist.ProcessGroup.allreduce
    dist.init_process_group("gloo")
    with goodput.step():
        dist.all_reduce(torch.ones(8))
    assert type(before).__name__ == "instancemethod" or "goodput" not in type(before).__module__
    session = goodput._session
    with Reader(session.writer.path, session.writer.fd) as reader:
        (directory / f"records-{rank}.json").write_text(json.dumps(reader.collectives()))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    core_wait = CoreWait()
    dist.init_process_group("gloo")
    other = dist.new_group([0, 1], group_desc="other")
    by_hand(None)
    by_hand(other)
    to_each_other()
    train(nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=0.0001))
    hooked = nn.parallel.DistributedDataParallel(layers())
    hooked.register_comm_hook(None, with_hook)
    train(hooked, 2)
    del hooked
    train(FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu")), 2)
    mesh = init_device_mesh("cpu", (2,))
    sharded = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(sharded, mesh=mesh)
    train(sharded, 2)
    functionally(mesh)
    (directory / f"flight-{rank}.json").write_bytes(torch._C._distributed_c10d._dump_fr_trace_json())
    session = goodput._session
    with Reader(session.writer.path, session.writer.fd) as reader:
        found, snapshot = reader.collectives(since=0), reader.snapshot()
        last = [record._asdict() for record in reader.collectives().records]
    document = found._asdict()
    document["hidden"] = [(*key, *hidden) for key, hidden in found.hidden.items()]
    for name in ("groups", "sums", "records"):
        document[name] = [one._asdict() for one in document[name]]
    for record in (*document["records"], *last):
        record["flags"] = sorted(record["flags"])
    spent = dict(zip(snapshot.phases, snapshot.totals, strict=True))["communication"]
    document.update(core_wait_seconds=core_wait.seconds())
    document.update(communication=spent, last=last, drops=snapshot.drops, kept_alive=kept_alive())
    (directory / f"records-{rank}.json").write_text(json.dumps(document))
    dist.barrier()
    dist.destroy_process_group()


def kept_alive() -> int:
    """The stand-ins for process groups that are left when no model is."""
    gc.collect()
    return sum(type(each).__name__ == "ReducerGroup" for each in gc.get_objects())


off() if "off" in sys.argv else main()
