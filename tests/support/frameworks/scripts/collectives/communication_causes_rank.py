"""One of two ranks over gloo whose communication costs time for a planted reason; run by test_communication_causes.py.

`late`: rank 1 computes longer. `small`: many all-reduces of a few bytes. `exposed`: a large one that is waited for at once.
`hidden`: the same, waited for after other work of the same length and more.
"""

import goodput.auto  # isort: skip
import sys
import time

import torch
import torch.distributed as dist

import goodput

STEPS, SMALL_CALLS, LARGE = 12, 60, 2_000_000
# Far longer than a rank waits for a core on a busy machine, which would make the other rank late, or the large message
# take longer than the work that hides it.
LATE_SECONDS, WORK_SECONDS = 0.15, 0.3


def step(reason: str, rank: int) -> None:
    with goodput.phase("forward"):
        time.sleep(0.002 + LATE_SECONDS * (reason == "late" and rank == 1))
    if reason == "small":
        for _ in range(SMALL_CALLS):
            dist.all_reduce(torch.ones(4))
    elif reason == "hidden":
        work = dist.all_reduce(torch.ones(LARGE), async_op=True)
        with goodput.phase("backward"):
            time.sleep(WORK_SECONDS)
        work.wait()
    else:
        dist.all_reduce(torch.ones(LARGE if reason == "exposed" else 300_000))


def main(reason: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for _ in goodput.steps(range(STEPS)):
        step(reason, dist.get_rank())
    dist.destroy_process_group()


main(sys.argv[2])
