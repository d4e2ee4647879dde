"""Declares a rank's stage and the number of microbatches from the schedules of torch.distributed.pipelining.

The stage is the rank's place in the pipeline's process group, also where a schedule gives it several stages of the model.
"""

from __future__ import annotations

from goodput.user_exceptions import drop_own_frames

MODULE = "torch.distributed.pipelining.schedules"
RELIES_ON = """torch/distributed/pipelining/schedules.py: PipelineScheduleSingle and PipelineScheduleMulti, whose __init__ sets
_n_microbatches and _stage or _stages; all schedules are subclasses and call it. torch/distributed/pipelining/stage.py: a
stage's group_rank and group_size, of its process group."""


def apply(module, auto) -> None:
    for kind in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
        _watch(kind, auto)


def _watch(kind, auto) -> None:
    make = kind.__init__

    @auto.patches.wrap("__init__", kind)
    def __init__(self, *args, **kwargs):
        try:
            make(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if not auto.removed:
            auto.attempt(lambda: declare(self))

    def declare(schedule) -> None:
        stage = schedule._stage if hasattr(schedule, "_stage") else schedule._stages[0]
        if stage.group_size > 1:
            auto.session.declare(stage=stage.group_rank, microbatches=schedule._n_microbatches)
