"""Hugging Face's Trainer: an evaluation is one from its call to its return, and a checkpoint is one, not its files."""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.sdk.automatic.frameworks.torch.saving import during
from goodput.sdk.automatic.trainer_progress import evaluates

MODULE = "transformers.trainer"
RELIES_ON = """transformers/trainer.py: Trainer.train calls evaluate, which calls evaluation_loop, as predict does;
_save_checkpoint(model, trial) has written when it returns; _load_from_checkpoint, _load_optimizer_and_scheduler and
_load_best_model read files."""


def apply(module, auto) -> None:
    trainer, recorder = module.Trainer, auto.recorder
    for name in ("evaluate", "predict", "evaluation_loop"):
        auto.patches.replace(trainer, name, evaluates(auto, getattr(trainer, name)))
    for name in ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_best_model"):
        auto.patches.replace(trainer, name, restores(auto, getattr(trainer, name)))
    save = trainer._save_checkpoint

    @functools.wraps(save)
    def _save_checkpoint(self, model, *args, **kwargs):
        if recorder.thread != get_ident() or recorder.current == auto.checkpoint.total:
            return save(self, model, *args, **kwargs)
        return during(auto, model, True, lambda: save(self, model, *args, **kwargs))

    auto.patches.replace(trainer, "_save_checkpoint", _save_checkpoint)


def restores(auto, load):
    """`load`, all of which is restoring."""
    recorder = auto.recorder

    @functools.wraps(load)
    def call(*args, **kwargs):
        if not auto.is_here() or recorder.current == auto.restore.total:
            return load(*args, **kwargs)
        auto.leave_step()
        return auto.restore.run(load, *args, **kwargs)

    return call
