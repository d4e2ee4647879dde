"""A Trainer class with an endless random DataLoader and callbacks, one of which saves a slow checkpoint."""

import os
import sys
import time
from collections import defaultdict

import torch
from support.programs.small_gpt import GPT
from support.programs.stopwatch import Stopwatch
from torch.utils.data import DataLoader, Dataset, RandomSampler

watch = Stopwatch()


class SortDataset(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        digits = torch.randint(0, 32, (48,), generator=torch.Generator().manual_seed(index))
        return digits, digits.sort()[0]


class Trainer:
    def __init__(self, max_iters, batch_size, model, train_dataset):
        self.max_iters, self.batch_size, self.model = max_iters, batch_size, model
        self.train_dataset, self.callbacks, self.iter_num = train_dataset, defaultdict(list), 0
        self.optimizer = model.configure_optimizers(3e-4)

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def run(self):
        self.model.train()
        sampler = RandomSampler(self.train_dataset, replacement=True, num_samples=10**10)
        loader = DataLoader(self.train_dataset, sampler=sampler, batch_size=self.batch_size, num_workers=0)
        iterator = iter(loader)
        while True:
            with watch("loader"):
                x, y = next(iterator)
            with watch("compute"):
                _logits, self.loss = self.model(x, y)
                self.model.zero_grad(set_to_none=True)
                self.loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
            watch.step()
            for callback in self.callbacks["on_batch_end"]:
                callback(self)
            self.iter_num += 1
            if self.iter_num >= self.max_iters:
                return


class SlowDisk:
    """A file on a disk that takes 0.2 s for each flush."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        return self.file.write(data)

    def flush(self):
        time.sleep(0.2)
        self.file.flush()


def main():
    torch.manual_seed(3407)
    path, losses = os.path.join(os.path.dirname(sys.argv[1]), "model.pt"), []

    def batch_end_callback(trainer):
        losses.append(trainer.loss.item())
        if trainer.iter_num % 10 == 9:
            with watch("checkpoint"), open(path, "wb") as file:
                torch.save(trainer.model.state_dict(), SlowDisk(file))

    trainer = Trainer(50, 8, GPT(32, 48, kernel_seconds=0.02), SortDataset())
    trainer.add_callback("on_batch_end", batch_end_callback)
    trainer.run()
    watch.write(sys.argv[1], trainer.model, losses)


if __name__ == "__main__":
    main()
