"""torch.distributed.checkpoint.state_dict: times what collects and sets states outside `save` and `load`, as the phases
`checkpoint` and `restore`, and takes a step that only initialises an optimizer's state for no training step.
"""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.user_exceptions import drop_own_frames

MODULE = "torch.distributed.checkpoint.state_dict"
RELIES_ON = """torch/distributed/checkpoint/state_dict.py: get_model_state_dict and its kin gather the shards, if a full
state is requested. _init_optim_state calls optimizer.step with a learning rate and gradients of zero, if the optimizer
has no state; it is looked up by that name."""
KINDS = "state_dict", "model_state_dict", "optimizer_state_dict"


def apply(module, auto) -> None:
    for verb, phase in (("get", auto.checkpoint), ("set", auto.restore)):
        for kind in KINDS:
            name = f"{verb}_{kind}"
            auto.patches.replace(module, name, _timed(auto, phase, getattr(module, name)))
    prepare = module._init_optim_state

    @auto.patches.wrap("_init_optim_state", module)
    def _init_optim_state(*args, **kwargs):
        before = auto.training.preparing
        try:
            auto.training.set_preparing(True)
            return prepare(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            auto.training.set_preparing(before)


def _timed(auto, phase, function):
    """Time calls between steps as the phase, outside any other: inside, they are part of the save, load or evaluation."""
    recorder, training = auto.recorder, auto.training

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            is_between = not (auto.removed or recorder.depth or training.trained or training.inside)
            if recorder.thread != get_ident() or not is_between:
                return function(*args, **kwargs)
            auto.leave_step()
            return phase.run(function, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    return call
