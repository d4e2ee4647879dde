"""Lightning's Trainer: validation of every epoch takes long, and the best model is saved."""

import os
import sys
import time

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from support.programs.kernels import Kernels
from support.programs.stopwatch import Stopwatch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

watch = Stopwatch()


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), Kernels(0.01), nn.Linear(512, 1)
        )
        self.losses = []

    def training_step(self, batch, _index):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _index):
        time.sleep(0.03)
        self.log("validation_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def optimizer_step(self, *args, **kwargs):
        with watch("compute"):
            super().optimizer_step(*args, **kwargs)
        watch.step()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class WatchedLoader(DataLoader):
    def __iter__(self):
        return watch.each("loader", super().__iter__())


class Sections(pl.Callback):
    """The author's sections: what no step is part of."""

    def on_validation_start(self, trainer, _module):
        if not trainer.sanity_checking:
            self.section = watch("evaluation")
            self.section.__enter__()

    def on_validation_end(self, trainer, _module):
        if not trainer.sanity_checking:
            self.section.__exit__(None, None, None)


class WatchedCheckpoint(ModelCheckpoint):
    def _save_checkpoint(self, *args, **kwargs):
        with watch("checkpoint"):
            super()._save_checkpoint(*args, **kwargs)


def main():
    pl.seed_everything(9, verbose=False)
    values = torch.randn(1024, 128)
    data = TensorDataset(values, values.sum(1, keepdim=True))
    model, here = Regression(), os.path.dirname(sys.argv[1])
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Sections(), WatchedCheckpoint(here, monitor="validation_loss")],
    )  # fmt: skip
    validation = DataLoader(TensorDataset(values[:256], values[:256].sum(1, keepdim=True)), batch_size=16)
    trainer.fit(model, WatchedLoader(data, batch_size=32, shuffle=True), validation)
    watch.write(sys.argv[1], model.net, model.losses)


if __name__ == "__main__":
    main()
