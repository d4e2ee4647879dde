"""One of two ranks over gloo that train a model of FSDP2, save it by torch.distributed.checkpoint and go on from there;
run by test_distributed_checkpoint.py.

In: the folder to write to. Out: `sharded-RANK-ATTEMPT.json`: what was planted, and how often `state_dict` was called.
In the first attempt rank 1's forward pass is late in each step; the model is saved at once after step 9, in a thread
after step 13 and by a process after step 17, and the last three steps are in no checkpoint. The second attempt loads.
"""

import goodput.auto  # isort: skip  # noqa: F401
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support.core_wait import CoreWait
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

STEPS, DELAY_SECONDS = 21, 0.15
SAVED, SAVED_BY_THREAD, SAVED_BY_PROCESS = 9, 13, 17


class Late(torch.nn.Module):
    """Passes its input on; held up for `planted_seconds` so far."""

    def __init__(self, delay_seconds: float):
        super().__init__()
        self.delay_seconds, self.planted_seconds = delay_seconds, 0.0

    def forward(self, inputs):
        if self.delay_seconds:
            began = time.perf_counter()
            time.sleep(self.delay_seconds)
            self.planted_seconds += time.perf_counter() - began
        return inputs


class Application(Stateful):
    """A model and its optimizer, as in the documentation of torch.distributed.checkpoint."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.calls = model, optimizer, 0

    def state_dict(self):
        self.calls += 1
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def main(directory: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) + 1
    late = Late(DELAY_SECONDS if rank == 1 and attempt == 1 else 0.0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), late, torch.nn.Tanh(), torch.nn.Linear(64, 1))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    application, saving, planted_seconds = Application(model, optimizer), None, 0.0
    aside = dist.new_group(backend="gloo")  # for writing beside the training
    if attempt > 1:
        dcp.load({"application": application}, checkpoint_id=f"{directory}/sharded-{SAVED_BY_PROCESS}")
    waited = CoreWait()
    for number in range(STEPS if attempt == 1 else 5):
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if attempt > 1:
            continue
        if saving is not None:
            saving.result()
            saving = None
        where = {"state_dict": {"application": application}, "checkpoint_id": f"{directory}/sharded-{number}"}
        if number == SAVED_BY_PROCESS:
            planted_seconds = late.planted_seconds  # in steps that are kept
        if number == SAVED:
            dcp.save(**where)
        elif number == SAVED_BY_THREAD:
            saving = dcp.async_save(**where, process_group=aside)
        elif number == SAVED_BY_PROCESS:
            kind = dcp.state_dict_saver.AsyncCheckpointerType.PROCESS
            saving = dcp.async_save(**where, process_group=aside, async_checkpointer_type=kind)
    dist.barrier()
    with open(f"{directory}/sharded-{rank}-{attempt}.json", "w") as file:
        result = {"planted_seconds": planted_seconds, "state_dict_calls": application.calls}
        json.dump({**result, "core_wait": waited.seconds()}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
