"""Accelerate's loop with gradient accumulation, an evaluation of gathered predictions, and a saved state."""

import os
import sys
import time

import torch
from accelerate import Accelerator
from support.programs.kernels import Kernels
from support.programs.stopwatch import Stopwatch
from torch import nn
from torch.utils.data import DataLoader, Dataset

watch = Stopwatch()


class SlowFiles(Dataset):
    """Records of a remote file system."""

    def __init__(self, count):
        self.values, self.labels = torch.randn(count, 64), torch.randint(0, 4, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time.sleep(0.001)
        return self.values[index], self.labels[index]


def evaluate(accelerator, model, loader, outputs):
    model.eval()
    for values, labels in loader:
        with torch.no_grad():
            predictions = model(values).argmax(-1)
        predictions, labels = accelerator.gather_for_metrics((predictions, labels))
        outputs.append((predictions == labels).float().mean().item())


def main():
    torch.manual_seed(8)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = nn.Sequential(
        nn.Linear(64, 1536), nn.ReLU(), nn.Linear(1536, 512), Kernels(0.02), nn.ReLU(), nn.Linear(512, 4)
    )
    optimizer, outputs = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    model, optimizer, train_loader, eval_loader = accelerator.prepare(
        model, optimizer, DataLoader(SlowFiles(512), 32, shuffle=True), DataLoader(SlowFiles(64), 32)
    )
    for epoch in range(2):
        model.train()
        for values, labels in watch.each("loader", train_loader):
            with watch("compute"), accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(values), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                watch.step()
            outputs.append(loss.item())
        with watch("evaluation"):
            evaluate(accelerator, model, eval_loader, outputs)
        with watch("checkpoint"):
            accelerator.save_state(os.path.join(os.path.dirname(sys.argv[1]), f"epoch{epoch}"))
    watch.write(sys.argv[1], accelerator.unwrap_model(model), outputs)


if __name__ == "__main__":
    main()
