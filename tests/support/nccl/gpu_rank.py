"""gpu_rank.py MODE OUT: data-parallel training over NCCL, with all ranks on one GPU as if each had a host of its own.

MODE `ddp` writes OUT/trace<rank>.json, a trace of torch.profiler of some steps. In `hang` rank 1 stops calling after
STEPS_BEFORE steps; both ranks then write OUT/flight<rank>, a dump of the Flight Recorder, and wait to be killed.
"""

import datetime
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS, STEPS_BEFORE, WIDTH, LAYERS = 40, 30, 1024, 8
SECONDS_MAX = 240


def main() -> None:
    mode, out, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])
    # Ranks of one host would refuse to share a GPU.
    os.environ.update(NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=SECONDS_MAX))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
    model = nn.parallel.DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = torch.utils.data.DataLoader([torch.randn(256, WIDTH)] * STEPS, batch_size=None)
    kinds = torch.profiler.ProfilerActivity
    profile = torch.profiler.profile(
        activities=[kinds.CPU, kinds.CUDA],
        schedule=torch.profiler.schedule(wait=20, warmup=2, active=8, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(out / f"trace{rank}.json")),
    )
    if mode == "ddp":
        profile.start()
    for number, batch in enumerate(batches):
        if mode == "hang" and number == STEPS_BEFORE:
            torch.cuda.synchronize()
            threading.Timer(10, dump, [out / f"flight{rank}"]).start()
            if rank == 1:
                time.sleep(SECONDS_MAX)
        loss = model(batch.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if mode == "ddp":
            profile.step()
    profile.stop()
    dist.barrier()
    dist.destroy_process_group()


def dump(path: Path) -> None:
    path.with_suffix(".part").write_bytes(torch._C._distributed_c10d._dump_nccl_trace())
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    main()
