"""Fabric's loop over a streaming dataset whose tokenizing is slow, with accumulation, validation and `fabric.save`."""

import os
import sys
import time

import lightning as L
import torch
from support.programs.small_gpt import GPT
from support.programs.stopwatch import Stopwatch
from torch.utils.data import DataLoader, IterableDataset

watch = Stopwatch()
ACCUMULATION_ITERS, MAX_STEPS = 2, 30


class TokenStream(IterableDataset):
    def __init__(self, seed, count):
        self.seed, self.count = seed, count

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            until = time.thread_time() + 0.0015
            while time.thread_time() < until:
                hash(tuple(range(100)))
            yield torch.randint(0, 64, (49,), generator=generator)


@torch.no_grad()
def validate(fabric, model, loader):
    fabric.barrier()
    model.eval()
    losses = [model(batch[:, :-1], batch[:, 1:])[1] for batch in loader]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(42, verbose=False)
    model = GPT(64, 48, kernel_seconds=0.015)
    optimizer = model.configure_optimizers(4e-4)
    model, optimizer = fabric.setup(model, optimizer)
    loaders = DataLoader(TokenStream(1, 1000), batch_size=8), DataLoader(TokenStream(2, 32), batch_size=8)
    train_loader, val_loader = fabric.setup_dataloaders(*loaders)
    state, outputs = {"model": model, "optimizer": optimizer, "iter_num": 0, "step_count": 0}, []
    for batch in watch.each("loader", train_loader):
        if state["step_count"] >= MAX_STEPS:
            break
        state["iter_num"] += 1
        is_accumulating = state["iter_num"] % ACCUMULATION_ITERS != 0
        with watch("compute"):
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                _logits, loss = model(batch[:, :-1], batch[:, 1:])
                fabric.backward(loss / ACCUMULATION_ITERS)
            if not is_accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
        outputs.append(loss.item())
        if is_accumulating:
            continue
        watch.step()
        state["step_count"] += 1
        if state["step_count"] % 10 == 0:
            with watch("evaluation"):
                outputs.append(validate(fabric, model, val_loader))
            with watch("checkpoint"):
                fabric.save(os.path.join(os.path.dirname(sys.argv[1]), "lit_model.pth"), state)
    watch.write(sys.argv[1], model, outputs)


if __name__ == "__main__":
    main()
