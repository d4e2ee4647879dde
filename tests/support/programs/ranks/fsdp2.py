"""FSDP2 (`fully_shard`) on gloo under torchrun, with distributed checkpoints on slow storage."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support.programs.small_gpt import GPT
from support.programs.stopwatch import Stopwatch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

watch = Stopwatch()


class SlowStorage(dcp.FileSystemWriter):
    def write_data(self, *args):
        time.sleep(0.5)
        return super().write_data(*args)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model, mesh = GPT(32, 32, kernel_seconds=0.03), init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, outputs = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for step in range(20):
        with watch("loader"):
            time.sleep(0.005)
            x = torch.randint(0, 32, (4, 32), generator=torch.Generator().manual_seed(2 * step + rank))
        with watch("compute"):
            loss = model(x, x)[1]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        watch.step()
        outputs.append(loss.item())
        if step % 10 == 9:
            with watch("checkpoint"):
                state = get_model_state_dict(model)
                place = os.path.join(os.path.dirname(sys.argv[1]), f"step{step}")
                dcp.save(state, storage_writer=SlowStorage(place))
    with watch("checkpoint"):
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    watch.write(sys.argv[1].replace(".json", f".{rank}.json"), full, outputs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
