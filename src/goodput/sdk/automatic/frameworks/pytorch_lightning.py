"""Lightning under its other import name: the same patch as lightning.py."""

from __future__ import annotations

from goodput.sdk.automatic.frameworks import lightning

MODULE = "pytorch_lightning.trainer.trainer"
RELIES_ON = lightning.RELIES_ON
apply = lightning.apply
