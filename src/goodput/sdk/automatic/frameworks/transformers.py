"""Transformers: wraps the Trainer's evaluations as evaluation, its checkpoints and its loading of them.

An evaluation lasts from the call to its return; a checkpoint is one, whatever files it consists of. The beginning of a
training declares after how many steps it will end.
"""

from __future__ import annotations

from goodput.sdk.automatic.frameworks._checkpoint_calls import as_checkpoint, as_restore
from goodput.sdk.automatic.trainer_progress import as_evaluation, declare_total_steps

MODULE = "transformers.trainer"
RELIES_ON = """transformers/trainer.py: Trainer.train calls evaluate, which calls evaluation_loop, as predict does;
_save_checkpoint(model, trial) has written when it returns; _load_from_checkpoint, _load_optimizer_and_scheduler and
_load_best_model read files. CallbackHandler.on_train_begin(args, state, control) is called with `state.max_steps` set."""


def apply(module, auto) -> None:
    trainer = module.Trainer
    for name in ("evaluate", "predict", "evaluation_loop"):
        auto.patches.replace(trainer, name, as_evaluation(auto, getattr(trainer, name)))
    for name in ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_best_model"):
        auto.patches.replace(trainer, name, as_restore(auto, getattr(trainer, name)))
    save = as_checkpoint(auto, trainer._save_checkpoint, lambda self, model, *args, **kwargs: model)
    auto.patches.replace(trainer, "_save_checkpoint", save)
    begin = module.CallbackHandler.on_train_begin

    @auto.patches.wrap("on_train_begin", module.CallbackHandler)
    def on_train_begin(handler, args, state, *more, **kwargs):
        declare_total_steps(auto, state, lambda state: state.max_steps)
        return begin(handler, args, state, *more, **kwargs)
