"""One rank under torchrun: trains, saves a checkpoint by torch.save, kills itself once and is started anew; run by
test_torchrun_restart.py, without a word of goodput: PYTHONPATH brings it, as `goodput run` does.

In: the folder for the checkpoint. Out: `weights-RANK`, the first weight at the end.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVED_EVERY, KILLED_BEFORE = 30, 8, 21

# Models live as long as the process: PyTorch joins a thread of gloo when it frees one, holding the interpreter's lock, for
# which that thread may wait.
KEPT = []


def main(path: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, done, attempt = int(os.environ["RANK"]), 0, os.environ["TORCHELASTIC_RESTART_COUNT"]
    # A store for each attempt: in the launcher's, ranks can find the addresses of those that were killed.
    where = f"file://{os.path.dirname(path)}/store-{attempt}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.Adam(model.parameters())
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    wrapped = DistributedDataParallel(model)
    KEPT.append(wrapped)
    for number in range(done, STEPS):
        if number == KILLED_BEFORE and attempt == "0" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(number)
        wrapped(torch.randn(8, 32, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not (number + 1) % SAVED_EVERY:
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": number + 1}
                torch.save(state, path + ".new")
                os.replace(path + ".new", path)
            dist.barrier()
    dist.barrier()
    with open(os.path.join(os.path.dirname(path), f"weights-{rank}"), "w") as file:
        file.write(repr(model.weight.tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(os.path.join(sys.argv[1], "checkpoint"))
