"""Trainings with Hugging Face's Trainer, for test_trainers.py.

argv is the directory, the module imported, and `auto` for goodput.auto without the callback. Models are made at random, nothing is loaded.
"""

import os
import sys
import time
import warnings

import support.frameworks.script_helpers as helpers
import torch
import transformers
from support.core_wait import CoreWait

warnings.filterwarnings("ignore")
DIRECTORY, ALONE = sys.argv[1], sys.argv[3:] == ["auto"]
LENGTH, VOCABULARY, LAYERS, HEADS, WIDTH = 24, 50, 2, 2, 32


def model():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    return transformers.GPT2LMHeadModel(config)


def items(count):
    made = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, VOCABULARY, (LENGTH,), generator=made) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


class Timed(transformers.Trainer):
    """Measures evaluation."""

    evaluated = 0.0

    def evaluate(self, *args, **kwargs):
        began = time.perf_counter()
        found = super().evaluate(*args, **kwargs)
        self.evaluated += time.perf_counter() - began
        return found


def trainer(callbacks, train=None, where="out", **options):
    options = {"max_steps": 12, "gradient_accumulation_steps": 2, "logging_steps": 5, **options}
    args = transformers.TrainingArguments(
        f"{DIRECTORY}/{where}",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **{"save_strategy": "no", **options},
    )
    train = helpers.Slow(items(60), 0.0) if train is None else train
    return Timed(
        model(), args, train_dataset=train, eval_dataset=helpers.Slow(items(16), 0.004), callbacks=callbacks
    )


def main():
    bare = trainer([])
    bare.train()
    import goodput

    if ALONE:
        import goodput.auto

        made = list
    else:
        from goodput.transformers import GoodputCallback

        def made():
            return [GoodputCallback()]

    goodput.start(run="same")
    measured = trainer(made())
    measured.train()
    goodput.stop()
    result = {"bare": helpers.digest(bare.model), "measured": helpers.digest(measured.model)}
    if "GOODPUT_DISABLE" not in os.environ:
        result.update(planted(goodput, made))
        if not ALONE:
            rare(goodput, made)
    helpers.print_result(**result)


def planted(goodput, made) -> dict:
    """A slow dataset, two evaluations and three checkpoints, over an epoch's end; then it goes on in new attempts."""
    data, waited = helpers.Slow(items(60)), CoreWait()
    goodput.start(run="planted")
    first = trainer(
        made(), data, "planted", eval_strategy="steps", eval_steps=6, save_strategy="steps", save_steps=4
    )
    first.train()
    goodput.stop()
    for steps in (16, 18):
        goodput.start(run="planted")
        more = trainer(made(), None, "planted", max_steps=steps)
        more.train(resume_from_checkpoint=f"{DIRECTORY}/planted/checkpoint-12")
        goodput.stop()
    goodput.start(run="alone")
    alone = trainer(made())
    alone.evaluate()
    goodput.stop()
    return {
        "loader": data.spent_seconds,
        "evaluation": first.evaluated,
        "alone": alone.evaluated,
        "core_wait": waited.seconds(),
    }


def rare(goodput, made) -> None:
    """Other trainings of a long-lived process."""
    goodput.start(run="several")
    trainer(made(), max_steps=5).train()
    trainer(made(), max_steps=4, bf16=True, gradient_accumulation_steps=1).train()
    goodput.stop()
    goodput.start(run="broken")
    broken = trainer(made(), where="broken", save_strategy="steps", save_steps=2, max_steps=8)
    compute, calls = broken.compute_loss, []

    def fails(*args, **kwargs):
        calls.append(1)
        if len(calls) == 13:  # In the 7th step of two batches each.
            raise ValueError("planted")
        return compute(*args, **kwargs)

    broken.compute_loss = fails
    try:
        broken.train()
    except ValueError:
        pass
    again = trainer(made(), where="broken", max_steps=8)
    again.train(resume_from_checkpoint=f"{DIRECTORY}/broken/checkpoint-4")
    goodput.stop()


if __name__ == "__main__":
    main()
