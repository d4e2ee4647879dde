"""A GPT fed by a generator that tokenizes documents, slowly, with gradient accumulation and a validation loss.

DOCUMENT_SECONDS in the environment plants a slower source of documents.
"""

import os
import sys
import time
from collections import deque

import torch
from support.programs.small_gpt import GPT
from support.programs.stopwatch import Stopwatch

watch = Stopwatch()
BATCH, LENGTH, ACCUMULATION_STEPS = 8, 64, 2
ITERATIONS = 40
DOCUMENT_SECONDS = float(os.environ.get("DOCUMENT_SECONDS", 0.004))


def documents(split):
    generator = torch.Generator().manual_seed(len(split))
    while True:
        time.sleep(DOCUMENT_SECONDS)
        yield "".join(
            chr(97 + letter) for letter in torch.randint(0, 26, (300,), generator=generator).tolist()
        )


def tokenizing_distributed_data_loader(split):
    """Endless (inputs, targets), as many tokens as needed from a stream of documents."""
    needed, tokens, stream = BATCH * LENGTH + 1, deque(), documents(split)
    while True:
        while len(tokens) < needed:
            tokens.extend(ord(letter) - 97 for letter in next(stream))
        scratch = torch.tensor([tokens.popleft() for _ in range(needed)], dtype=torch.long)
        yield scratch[:-1].view(BATCH, LENGTH), scratch[1:].view(BATCH, LENGTH)


def evaluate_bpb(model, batches, steps):
    model.eval()
    with torch.no_grad():
        total = sum(model(*next(batches))[1].item() for _ in range(steps))
    model.train()
    return total / steps


def main():
    torch.manual_seed(42)
    model = GPT(26, LENGTH, kernel_seconds=0.03)
    optimizers = [
        torch.optim.SGD([p for p in model.blocks.parameters() if p.dim() == 2], lr=0.02, momentum=0.9),
        torch.optim.AdamW([*model.wte.parameters(), *model.lm_head.parameters()], lr=0.01),
    ]
    train_loader = tokenizing_distributed_data_loader("train")
    with watch("startup"):
        x, y = next(train_loader)  # kick off load of the very first batch of data
    outputs = []
    for step in range(ITERATIONS):
        if step == ITERATIONS * 3 // 4:
            with watch("evaluation"):
                outputs.append(evaluate_bpb(model, tokenizing_distributed_data_loader("val"), 4))
        for _micro_step in range(ACCUMULATION_STEPS):
            with watch("compute"):
                _logits, loss = model(x, y)
                train_loss = loss.detach()
                (loss / ACCUMULATION_STEPS).backward()
            with watch("loader"):
                x, y = next(
                    train_loader
                )  # prefetch the next batch while the GPU is busy with forward/backward
        with watch("compute"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.99
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad(set_to_none=True)
        watch.step()
        outputs.append(train_loss.item())
    watch.write(sys.argv[1], model, outputs)


if __name__ == "__main__":
    main()
