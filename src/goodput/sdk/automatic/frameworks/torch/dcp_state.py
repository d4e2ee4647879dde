"""torch.distributed.checkpoint: a step that only initialises an optimizer's state is not a training step."""

from __future__ import annotations

from goodput.sdk.recorder.user_exceptions import drop_own_frames

MODULE = "torch.distributed.checkpoint.state_dict"
RELIES_ON = """torch/distributed/checkpoint/state_dict.py: _init_optim_state calls optimizer.step with a learning rate
and gradients of zero, if the optimizer has no state; it is looked up by that name."""


def apply(module, auto) -> None:
    prepare = module._init_optim_state

    @auto.patches.wrap("_init_optim_state", module)
    def _init_optim_state(*args, **kwargs):
        before, auto.recorder.preparing = auto.recorder.preparing, True
        try:
            return prepare(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            auto.recorder.preparing = before
