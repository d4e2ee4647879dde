"""Trainings with Lightning, for test_trainers.py.

argv is the directory, the name to import it by, and `auto` for goodput.auto without the callback.
"""

import importlib
import logging
import os
import sys
import time
import warnings

import support.frameworks.script_helpers as helpers
import torch
from support.core_wait import CoreWait

warnings.filterwarnings("ignore")
DIRECTORY, NAME, ALONE = *sys.argv[1:3], sys.argv[3:] == ["auto"]
lightning = importlib.import_module(NAME)
logging.getLogger(NAME).setLevel(logging.ERROR)
DataLoader = torch.utils.data.DataLoader


class Model(lightning.LightningModule):
    def __init__(self, width=128, fails_at=None):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))
        self.fails_at = fails_at

    def training_step(self, batch, index):
        if self.fails_at is not None and self.global_step >= self.fails_at:
            raise ValueError("planted")
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        # Gradients within a validation, as models of forces take them; goodput.auto alone sees training in that.
        with torch.set_grad_enabled(not ALONE):
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            if not ALONE:
                torch.autograd.grad(loss, self.net[0].weight)
        self.log("loss", loss.detach())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class TwoOptimizers(Model):
    automatic_optimization = False

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in (self.net[0], self.net[2])]


class Halves(torch.optim.SGD):
    """An optimizer that steps part by part, as DeepSpeed's do: the hooks of torch see two steps of another one."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr)

    def step(self, closure=None):
        loss = closure()
        self.inner.step()
        self.inner.step()
        return loss


class Clock(lightning.Callback):
    """Measures validation by the trainer's own hooks."""

    seconds = 0.0

    def on_validation_start(self, trainer, module):
        self.began = time.perf_counter()

    def on_validation_end(self, trainer, module):
        self.seconds += time.perf_counter() - self.began


def items(count):
    made = torch.Generator().manual_seed(1)
    return [(torch.randn(16, generator=made), torch.randn(4, generator=made)) for _ in range(count)]


def trainer(callbacks=(), saves_every=0, where=DIRECTORY, **options):
    callbacks = list(callbacks)
    if saves_every:
        callbacks.append(
            lightning.callbacks.ModelCheckpoint(
                where, "{step}", every_n_train_steps=saves_every, save_top_k=-1
            )
        )
    return lightning.Trainer(
        accelerator="cpu",
        inference_mode=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(saves_every),
        default_root_dir=DIRECTORY,
        callbacks=callbacks,
        **options,
    )


def fit(callbacks, model=None, train=None, ckpt_path=None, **options):
    """A fit of 12 steps of 2 batches each, with two validations and a check of them before it."""
    torch.manual_seed(0)
    model = model or Model()
    train = helpers.Slow(items(400), 0.0) if train is None else train
    options = {"max_steps": 12, "accumulate_grad_batches": 2, "limit_val_batches": 0, **options}
    valid = DataLoader(options.pop("valid", None) or items(8), 4)
    trainer(callbacks, **options).fit(model, DataLoader(train, 4), valid, ckpt_path=ckpt_path)
    return helpers.digest(model)


def main():
    result = {"bare": fit([])}
    if ALONE:
        import goodput
        import goodput.auto

        made = list
    else:
        import goodput
        from goodput.lightning import GoodputCallback

        def made():
            return [GoodputCallback()]

    goodput.start(run="same")
    result["measured"] = fit(made())
    goodput.stop()
    if "GOODPUT_DISABLE" not in os.environ:
        result.update(planted(goodput, made))
    if not ALONE and NAME == "lightning.pytorch":
        result.update(rare(goodput, made))
    if ALONE:
        from goodput.lightning import GoodputCallback

        goodput.start(run="then")
        fit([GoodputCallback()], max_steps=3)
        goodput.stop()
        result["is_callback"] = issubclass(GoodputCallback, lightning.Callback)
    helpers.print_result(**result)


def planted(goodput, made) -> dict:
    """A slow dataset, slow validation and checkpoints; then the run goes on in another attempt."""
    data, valid, clock = helpers.Slow(items(400)), helpers.Slow(items(16), 0.004), Clock()
    waited = CoreWait()
    goodput.start(run="planted")
    fit(
        [*made(), clock],
        Model(512),
        data,
        valid=valid,
        limit_val_batches=4,
        num_sanity_val_steps=2,
        val_check_interval=12,
        saves_every=4,
    )
    goodput.stop()
    goodput.start(run="planted")
    fit(made(), Model(512), max_steps=16, ckpt_path=f"{DIRECTORY}/step=12.ckpt")
    goodput.stop()
    goodput.start(run="planted")
    fit(made(), Model(512), max_steps=18, ckpt_path=f"{DIRECTORY}/step=12.ckpt")
    goodput.stop()
    goodput.start(run="alone")
    data_alone = helpers.Slow(items(64))
    trainer(made()).validate(Model(), DataLoader(data_alone, 8), verbose=False)
    goodput.stop()
    return {
        "loader": data.spent_seconds,
        "validation": clock.seconds,
        "alone": data_alone.spent_seconds,
        "core_wait": waited.seconds(),
    }


def rare(goodput, made) -> dict:
    """Other trainings of a long-lived process."""
    waited = CoreWait()
    goodput.start(run="several")  # Two fits, both kept, the second from scratch, with other loaders.
    kept = helpers.Slow(items(400))
    fit(made(), train=kept, max_steps=5, accumulate_grad_batches=1)
    spent, again = kept.spent_seconds, helpers.Slow(items(400))
    fit(made(), train=again, max_steps=4, accumulate_grad_batches=1)
    goodput.stop()
    several = {
        "several": spent + again.spent_seconds,
        "several_core_wait": waited.seconds(),
    }
    goodput.start(run="broken")  # Fails at step 6, and continues from the checkpoint after step 4.
    where = f"{DIRECTORY}/broken"
    try:
        fit(made(), Model(fails_at=6), saves_every=2, where=where, accumulate_grad_batches=1)
    except ValueError:
        pass
    fit(made(), max_steps=8, accumulate_grad_batches=1, ckpt_path=f"{where}/step=4.ckpt")
    goodput.stop()
    goodput.start(run="two")
    fit(made(), TwoOptimizers(), max_steps=10, accumulate_grad_batches=1)
    goodput.stop()
    goodput.start(run="halves")
    model = Model()
    model.configure_optimizers = lambda: Halves(list(model.parameters()), lr=0.01)
    fit(made(), model, max_steps=9, accumulate_grad_batches=1)
    goodput.stop()
    goodput.start(run="asynchronous")
    writes = lightning.plugins.io.AsyncCheckpointIO()
    fit(made(), saves_every=6, where=f"{DIRECTORY}/asynchronous", plugins=[writes])
    goodput.stop()
    return several


if __name__ == "__main__":
    main()
