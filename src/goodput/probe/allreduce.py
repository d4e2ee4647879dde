"""Bus bandwidth of all-reduce over ranks by size: 2 (n - 1) / n x bytes / time, as nccl-tests define it
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
"""

from __future__ import annotations

import os
import socket
import time

from goodput.probe import child
from goodput.probe.figure import Figure, rate_of
from goodput.probe.ranks import Ranks

SIZES = {"64KiB": 64 << 10, "1MiB": 1 << 20, "16MiB": 16 << 20}
GPU_SIZES = {**SIZES, "256MiB": 256 << 20}
SECONDS = 0.3


def over_processes(ranks: int, gpus: int) -> list[Figure]:
    """Over as many processes of this node, which the probe starts; with GPUs one for each, over NCCL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    calls = [(_rank, (rank, ranks, port, gpus)) for rank in range(ranks)]
    return child.run_all(calls)[0]


def _rank(rank: int, ranks: int, port: int, gpus: int) -> list[Figure]:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    import torch

    # Ranks that share the cores.
    torch.set_num_threads(1)
    group = Ranks()
    found = over_group(group, gpus)
    group.leave()
    return found


def over_group(ranks: Ranks, gpus: int) -> list[Figure]:
    """Over ranks that each call this, such as those that torchrun started."""
    import torch
    import torch.distributed as dist

    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % gpus) if gpus else torch.device("cpu")
    )
    if gpus:
        torch.cuda.set_device(device)
    with ranks.group("all-reduce", "nccl" if gpus else "gloo"):
        sizes = GPU_SIZES if gpus else SIZES
        return [_figure(torch, dist, device, name, size) for name, size in sizes.items()]


def _figure(torch, dist, device, name: str, size: int) -> Figure:
    values = torch.zeros(size // 4, device=device)
    ranks = dist.get_world_size()

    def once() -> float:
        start = time.perf_counter()
        dist.all_reduce(values)
        if device.type != "cpu":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    # The first rank's first time decides how often all ranks repeat.
    often = torch.tensor([min(2000, max(5, int(SECONDS / once())))], device=device)
    dist.broadcast(often, 0)
    rate, spread = rate_of(2 * (ranks - 1) / ranks * size, [once() for _ in range(int(often))])
    return Figure(f"all_reduce_{name}", rate, "B/s", f"{ranks} ranks, {dist.get_backend()}", spread=spread)
