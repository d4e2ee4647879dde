"""One of two ranks over gloo that train the same models without goodput.auto, with it and after its removal; run by
test_distributed_weights.py.

In: the folder to write to. Out: `weights-RANK.json`: by kind of training the weights' digests of the three runs, what
was planted and measured, and what was left in PyTorch after the removal. Rank 1 is late before each step.
"""

import hashlib
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor
from support.core_wait import CoreWait
from support.frameworks import replaced_attributes
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from goodput.rank_page import page

STEPS, DELAY_SECONDS = 8, 0.03
KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def layers() -> torch.nn.Module:
    torch.manual_seed(0)
    block = lambda: torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())  # noqa: E731
    return torch.nn.Sequential(block(), block(), block(), torch.nn.Linear(32, 1))


@kind
def ddp():
    return DistributedDataParallel(layers(), bucket_cap_mb=0.002)


@kind
def fsdp1():
    policy = ModuleWrapPolicy({torch.nn.Sequential})
    return FullyShardedDataParallel(layers(), auto_wrap_policy=policy, device_id=torch.device("cpu"))


@kind
def fsdp2():
    model = layers()
    for block in model[:3]:
        fully_shard(block)
    return fully_shard(model)


@kind
def fsdp2_prefetching():
    model = layers()
    for block in model[:3]:
        fully_shard(block)
    fully_shard(model)
    model._set_unshard_async_op(True)
    model[0].set_modules_to_forward_prefetch([model[1]])
    model[2].set_modules_to_backward_prefetch([model[1], model[0]])
    return model


def digest(model) -> str:
    """A hash of all weights, gathered from the ranks."""
    found = hashlib.sha256()
    for weights in model.parameters():
        whole = weights.full_tensor() if hasattr(weights, "full_tensor") else weights
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def train(make, delay_seconds: float) -> tuple[str, float]:
    """(digest of the weights, seconds that were planted)."""
    model, planted = make(), 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for number in range(STEPS):
        if number and delay_seconds and dist.get_rank() == 1:
            began = time.perf_counter()
            time.sleep(delay_seconds)
            planted += time.perf_counter() - began
        loss = model(torch.randn(8, 32, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(model), planted


def totals() -> list[int]:
    import goodput

    recorder = goodput._session.recorder
    if not recorder.is_recording:
        return [0] * len(page.PHASES)
    recorder.charge(time.perf_counter_ns())
    return [recorder.words[page.W_TOTALS + index] for index in range(len(page.PHASES))]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    report = {name: {"plain": train(make, 0.0)[0]} for name, make in KINDS.items()}
    report["untrained"] = digest(layers())
    report["before"], attributes_before = replaced_attributes.ours(), replaced_attributes.attributes()
    import goodput.auto

    replaced = {id(owner): owner for owner, name, *_ in goodput.auto._auto.patches._done if name is not None}
    for name, make in KINDS.items():
        dist.barrier()
        before, waited = totals(), CoreWait()
        report[name]["auto"], report[name]["planted"] = train(make, DELAY_SECONDS)
        dist.barrier()
        report[name]["phases"] = dict(
            zip(page.PHASES, ((b - a) / 1e9 for a, b in zip(before, totals(), strict=True)), strict=True)
        )
        report[name]["core_wait"] = waited.seconds()
    report["during"] = replaced_attributes.ours()
    report["broken"] = replaced_attributes.not_restored(attributes_before, replaced)
    goodput.auto.remove()
    report["after"], report["not_restored"] = (
        replaced_attributes.ours(),
        replaced_attributes.not_restored(attributes_before, replaced),
    )
    for name, make in KINDS.items():
        report[name]["removed"] = train(make, 0.0)[0]
    with open(f"{sys.argv[1]}/weights-{dist.get_rank()}.json", "w") as file:
        json.dump(report, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
