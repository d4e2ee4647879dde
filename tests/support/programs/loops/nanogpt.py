"""A GPT fed by a function that reads random blocks of a memory-mapped file, slowly, with gradient accumulation.

Every ten steps it estimates the loss on both splits and saves a checkpoint.
"""

import contextlib
import math
import os
import sys
import time

import numpy as np
import torch
from support.programs.small_gpt import GPT
from support.programs.stopwatch import Stopwatch

watch = Stopwatch()
BATCH, BLOCK, MICRO_STEPS, MAX_ITERS, EVAL_INTERVAL, EVAL_ITERS = 8, 64, 2, 30, 10, 3


def get_batch(split):
    with watch("loader"):
        data = np.memmap(
            os.path.join(os.path.dirname(sys.argv[1]), f"{split}.bin"), dtype=np.uint16, mode="r"
        )
        time.sleep(0.01)
        ix = torch.randint(len(data) - BLOCK, (BATCH,))
        x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss(model):
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(EVAL_ITERS)
        for k in range(EVAL_ITERS):
            losses[k] = model(*get_batch(split))[1].item()
        out[split] = losses.mean().item()
    model.train()
    return out


def get_lr(it):
    return 6e-5 + 0.5 * (1.0 + math.cos(math.pi * it / MAX_ITERS)) * 5.4e-4


def main():
    torch.manual_seed(1337)
    here = os.path.dirname(sys.argv[1])
    for split in ("train", "val"):
        tokens = torch.randint(0, 65, (100_000,), generator=torch.Generator().manual_seed(len(split)))
        tokens.numpy().astype(np.uint16).tofile(os.path.join(here, f"{split}.bin"))
    model, ctx = GPT(65, BLOCK, kernel_seconds=0.012), contextlib.nullcontext()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    optimizer = model.configure_optimizers(6e-4)
    X, Y = get_batch("train")
    iter_num, outputs = 0, []
    while True:
        for param_group in optimizer.param_groups:
            param_group["lr"] = get_lr(iter_num)
        if iter_num % EVAL_INTERVAL == 0 and iter_num > 0:
            with watch("evaluation"):
                outputs.extend(estimate_loss(model).values())
            with watch("checkpoint"):
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                }
                torch.save(state, os.path.join(here, "ckpt.pt"))
        for _micro_step in range(MICRO_STEPS):
            with watch("compute"):
                with ctx:
                    _logits, loss = model(X, Y)
                    loss = loss / MICRO_STEPS
                # immediately async prefetch next batch while model is doing the forward pass on the GPU
                X, Y = get_batch("train")
                scaler.scale(loss).backward()
        with watch("compute"):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        watch.step()
        outputs.append(loss.item())
        iter_num += 1
        if iter_num > MAX_ITERS:
            break
    watch.write(sys.argv[1], model, outputs)


if __name__ == "__main__":
    main()
