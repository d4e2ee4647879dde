"""Two ranks under torchrun that are killed after their step 24, before step 25 has ended, and resume from step 19."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from support.programs.stopwatch import Stopwatch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

watch = Stopwatch()
STEPS, SAVE_EVERY, KILLED_AT = 40, 10, 25

# Models live as long as the process: PyTorch joins a thread of gloo when it frees one, holding the interpreter's lock, for
# which that thread may wait.
KEPT = []


def main():
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    # A store for each attempt: in the launcher's, ranks can find the addresses of those that were killed.
    store = f"file://{os.path.dirname(sys.argv[1])}/store-{attempt}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    written = sys.argv[1].replace(".json", f".{rank}.{attempt}.json")
    path = os.path.join(os.path.dirname(sys.argv[1]), "snapshot.pt")
    torch.manual_seed(11)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 1536), nn.ReLU(), nn.Linear(1536, 8)))
    KEPT.append(model)
    optimizer, losses, first = torch.optim.AdamW(model.parameters()), [], 0
    if os.path.exists(path):
        with watch("restore"):
            snapshot = torch.load(path)
            model.module.load_state_dict(snapshot["model"])
            optimizer.load_state_dict(snapshot["optimizer"])
            first = snapshot["global_step"]
    values = torch.randn(STEPS * 16, 64)
    data = TensorDataset(values[first * 16 :], values[first * 16 :, :8])
    for step, (x, y) in enumerate(watch.each("loader", DataLoader(data, 16)), first):
        with watch("compute"):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            if step == KILLED_AT and attempt == 0:
                watch.write(written, model.module, losses)
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
        watch.step()
        losses.append(loss.item())
        if step % SAVE_EVERY == SAVE_EVERY - 1 and rank == 0:
            with watch("checkpoint"):
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "global_step": step + 1}, path)
    watch.write(written, model.module, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
