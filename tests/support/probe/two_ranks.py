"""A rank of a process group of two, of which the second is slow to end; prints when it was done, and when it had left."""

import os
import time

import torch
import torch.distributed as dist

from goodput.probe.ranks import Ranks

ranks = Ranks()
with ranks.group("one", "gloo"):
    dist.all_reduce(torch.zeros(4))
    if os.environ["RANK"] == "1":
        time.sleep(0.5)
    done = time.monotonic()
left = time.monotonic()
with ranks.group("two", "gloo"):
    dist.all_reduce(torch.zeros(4))
ranks.leave()
print(done, left)
