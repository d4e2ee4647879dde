"""A callback for Lightning >= 2 (`lightning.pytorch` or `pytorch_lightning`) that measures its Trainer.

    trainer = lightning.pytorch.Trainer(callbacks=[GoodputCallback()])

It switches goodput.auto on, and adds what only the Trainer knows: the step a fit resumes from, when validation, the
sanity check, testing and prediction begin and end, the precision, and that a fit was aborted. It changes no result,
raises nothing and stores nothing in checkpoints; a hook costs about 1 us.

A step is an optimizer step. The Trainer's `global_step` counts those of every optimizer, so with several of them it
is divided by their number; where one steps more rarely, a restored step index is too low or too high.
"""

from __future__ import annotations

import importlib
import sys

import goodput
from goodput import auto
from goodput.sdk.automatic.trainer_progress import callback, full_precision

NAMES = ("lightning.pytorch", "pytorch_lightning")
DTYPES = {"64-true": "fp64", "16-mixed": "fp16", "16-true": "fp16", "bf16-mixed": "bf16", "bf16-true": "bf16"}


def _bases() -> tuple:
    """`Callback` of the packages that the script has imported, else of the one that is installed."""
    used = [sys.modules[name] for name in NAMES if hasattr(sys.modules.get(name), "Callback")]
    for name in NAMES if not used else ():
        try:
            used = [importlib.import_module(name)]
            break
        except ModuleNotFoundError as error:
            if name == NAMES[-1]:
                raise ModuleNotFoundError(
                    f"goodput.lightning needs Lightning, {' or '.join(NAMES)}"
                ) from error
    return tuple(module.Callback for module in used)


class GoodputCallback(*_bases()):
    """Measures one Trainer or several."""

    session = property(lambda self: goodput._session)

    @callback
    def setup(self, trainer, pl_module, stage=None):
        if trainer.world_size > 1:
            self.session.set_rank(trainer.global_rank, trainer.world_size)
        auto.progress().auto.allow_start()

    # -- training

    @callback
    def on_train_start(self, trainer, pl_module):
        optimizers, precision = len(trainer.optimizers), str(trainer.precision)
        auto.progress().begin(
            trainer.global_step // max(optimizers, 1),
            microbatches=trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1,
            dtype=full_precision() if precision == "32-true" else DTYPES.get(precision),
            compared=optimizers == 1,
        )

    @callback
    def on_train_epoch_start(self, trainer, pl_module):
        auto.progress().epoch_begins()

    @callback
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        now = self.session.automatic.progress
        if now.steps is not None:
            now.steps_done(trainer.global_step)

    @callback
    def on_train_end(self, trainer, pl_module):
        auto.progress().end()

    @callback
    def on_exception(self, trainer, pl_module, exception):
        auto.progress().abort(exception)

    # -- evaluation

    @callback
    def on_validation_start(self, trainer, pl_module):
        auto.progress().begin_evaluation()

    @callback
    def on_validation_end(self, trainer, pl_module):
        auto.progress().end_evaluation()

    on_sanity_check_start = on_test_start = on_predict_start = on_validation_start
    on_sanity_check_end = on_test_end = on_predict_end = on_validation_end
