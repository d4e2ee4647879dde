"""Wraps `Module.train`: evaluation lasts from `eval()` of a root module until the next call that trains."""

from __future__ import annotations

import functools
from _thread import get_ident

MODULE = "torch"
RELIES_ON = """torch/nn/modules/module.py: Module.eval calls self.train(False)."""


def apply(torch, auto) -> None:
    train, recorder = torch.nn.Module.train, auto.recorder

    @functools.wraps(train)
    def timed(self, mode=True):
        # Called for children, too, which are not roots.
        if auto.roots.slot.is_root(self) and recorder.thread == get_ident() and not recorder.inside:
            if not mode and self.training and recorder.steps:
                auto.start_evaluation()
            elif mode and recorder.evaluating:
                auto.stop_evaluation()
        return train(self, mode)

    auto.patches.replace(torch.nn.Module, "train", timed)
