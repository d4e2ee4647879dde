"""Two ranks over gloo with PyTorch's worker servers in a directory; rank 1 does not come to the second all-reduce.

flight_server.py DIRECTORY

Prints what `analyze_flight` says of the sockets while rank 0 hangs.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "100"

import torch
import torch.distributed as dist
from support.frameworks.forked_ranks import forked_ranks
from torch._C._distributed_c10d import _WorkerServer

from goodput.trace import TraceError
from goodput.trace.hangs.flight import analyze_flight


def run_rank(rank: int, directory: Path) -> None:
    store = dist.FileStore(str(directory / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    server = _WorkerServer(str(directory / f"rank_{rank}.sock"))
    dist.all_reduce(torch.ones(10))
    if rank == 0:
        dist.all_reduce(torch.ones(20))
    time.sleep(600)
    server.shutdown()


def judged(directory: Path) -> dict:
    """As soon as rank 0 is in its second call."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            found = analyze_flight(directory)
            if (
                found["verdict"] is not None
                and len(found["ranks"]) == 2
                and found["operations"][0]["open"] == 1
            ):
                return found
        except TraceError:
            pass  # The servers are not there yet.
        time.sleep(0.1)
    raise TimeoutError("rank 0 does not hang")


def main() -> None:
    directory = Path(sys.argv[1])
    with forked_ranks(2, lambda rank: run_rank(rank, directory)):
        print(json.dumps(judged(directory)))


main()
