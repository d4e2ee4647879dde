"""Collectives that a script calls by hand, and the waits for those that run beside the computation.

A call with async_op=True returns at once; what the step feels of it is `Work.wait`. What DistributedDataParallel
and FSDP wait for has patches of its own.
"""

from __future__ import annotations

import functools
from _thread import get_ident

MODULE = "torch"
RELIES_ON = """torch/distributed/distributed_c10d.py: the functions of NAMES, which torch.distributed carries under the same
names; torch/csrc/distributed/c10d/init.cpp: the class Work with `wait`. Older versions lack some of them."""
NAMES = (
    *("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_coalesced"),
    *("all_gather_into_tensor", "_all_gather_base", "gather", "scatter", "reduce_scatter"),
    *("reduce_scatter_tensor", "_reduce_scatter_base", "all_to_all", "all_to_all_single"),
    *("barrier", "monitored_barrier", "send", "recv", "batch_isend_irecv"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
)


def apply(torch, auto) -> None:
    if not torch.distributed.is_available():
        return
    timed = timer(torch, auto)
    package, module = torch.distributed, torch.distributed.distributed_c10d
    for name in NAMES:
        if hasattr(module, name):
            call = timed(getattr(module, name))
            auto.patches.replace(module, name, call)
            if hasattr(package, name):
                auto.patches.replace(package, name, call)
    auto.patches.replace(module.Work, "wait", timed(module.Work.wait))
    _watch_groups(torch, auto)


def timer(torch, auto):
    """Wraps a function that may wait for other ranks: its time is communication, on whichever thread it runs."""
    phase, recorder, is_compiling = auto.communication, auto.recorder, torch.compiler.is_compiling

    def timed(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            if is_compiling() or auto.evaluating:
                return function(*args, **kwargs)
            if recorder.thread == get_ident():
                with phase:
                    return function(*args, **kwargs)
            if recorder.device is None:
                return function(*args, **kwargs)
            # An autograd thread, for which the step thread waits.
            auto.tell_device(recorder.current)
            try:
                return function(*args, **kwargs)
            finally:
                auto.tell_device(phase.total)

        return call

    return timed


def _watch_groups(torch, auto) -> None:
    """A process that joins a group is a rank, and knows which one."""
    package, module = torch.distributed, torch.distributed.distributed_c10d
    init = module.init_process_group

    @functools.wraps(init)
    def init_process_group(*args, **kwargs):
        result = init(*args, **kwargs)
        try:
            if auto.is_rank():
                auto.session.place(module.get_rank(), module.get_world_size())
        except Exception:
            pass
        return result

    auto.patches.replace(module, "init_process_group", init_process_group)
    auto.patches.replace(package, "init_process_group", init_process_group)
