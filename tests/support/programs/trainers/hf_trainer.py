"""The Trainer of transformers on a small GPT-2, with a slow data collator, an evaluation and checkpoints."""

import os
import sys
import time

import torch
from support.programs.stopwatch import Stopwatch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

watch = Stopwatch()


def collate(rows):
    """A batch, padded and masked slowly."""
    with watch("loader"):
        until, batch = time.thread_time() + 0.02, torch.empty(0)
        while time.thread_time() < until:
            batch = torch.stack([row["input_ids"] for row in rows])
        return {"input_ids": batch, "labels": batch}


class WatchedTrainer(Trainer):
    """The Trainer with its author's stopwatch."""

    def training_step(self, *args, **kwargs):
        with watch("compute"):
            return super().training_step(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        with watch("evaluation"):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        with watch("checkpoint"):
            return super()._save_checkpoint(*args, **kwargs)


class Steps(TrainerCallback):
    def on_pre_optimizer_step(self, *_args, **_kwargs):
        self.began = watch("compute")
        self.began.__enter__()

    def on_optimizer_step(self, *_args, **_kwargs):
        self.began.__exit__(None, None, None)
        watch.step()


def main():
    torch.manual_seed(7)
    rows = [{"input_ids": row} for row in torch.randint(0, 100, (240, 48))]
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100, n_positions=64))
    arguments = TrainingArguments(
        os.path.join(os.path.dirname(sys.argv[1]), "out"), per_device_train_batch_size=8, num_train_epochs=1,
        logging_steps=5, eval_strategy="steps", eval_steps=10, save_steps=15, report_to=[], use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    trainer = WatchedTrainer(
        model,
        arguments,
        data_collator=collate,
        train_dataset=rows,
        eval_dataset=rows[:32],
        callbacks=[Steps()],
    )
    trainer.train()
    losses = [
        entry[key] for entry in trainer.state.log_history for key in ("loss", "eval_loss") if key in entry
    ]
    watch.write(sys.argv[1], model, losses)


if __name__ == "__main__":
    main()
