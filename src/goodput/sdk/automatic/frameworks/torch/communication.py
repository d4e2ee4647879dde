"""Wraps the collectives of torch.distributed, `Work.wait` and waits of DistributedDataParallel as `communication`.

A call with async_op=True returns at once; what the step waits for is `Work.wait`. On a thread of autograd, for which
the step thread waits, only the boundaries of the device clock are recorded. Calls of other threads, such as those of
a background checkpoint, are left alone, and so are calls inside another one or inside a checkpoint, a restore, an
evaluation or a rollout, of which they are a part. DistributedDataParallel waits for its buffers and for agreement on
buckets in forward passes, and for gradients at the end of backward passes (backward.py). FSDP and functional
collectives have patches of their own, made with `timer`.
"""

from __future__ import annotations

import functools
from _thread import get_ident

from goodput.defaults import PEERS
from goodput.user_exceptions import drop_own_frames
from goodput.wire.identity import from_environment

MODULE = "torch"
RELIES_ON = """torch/distributed/distributed_c10d.py: the functions of NAMES, which are also attributes of torch.distributed; torch/csrc/distributed/c10d/init.cpp: the class Work with `wait`; torch/csrc/autograd/init.cpp:
_current_graph_task_id() is -1 in a thread that runs no backward pass. Older versions lack some of the names.
torch/nn/parallel/distributed.py: DistributedDataParallel.__init__ creates the reducer; _pre_forward calls
_sync_buffers, which waits for rank 0's buffers, and in the second pass Reducer._rebuild_buckets waits for rank 0's
order of buckets (torch/csrc/distributed/c10d/reducer.cpp, sync_bucket_indices)."""
NAMES = (
    *("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_coalesced"),
    *("all_gather_into_tensor", "all_gather_single", "_all_gather_base", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"),
    *("all_to_all", "all_to_all_single", "barrier", "monitored_barrier"),
    *("send", "recv", "batch_isend_irecv", "all_gather_object", "gather_object", "broadcast_object_list"),
    *("scatter_object_list", "send_object_list", "recv_object_list"),
)


def apply(torch, auto) -> None:
    if not torch.distributed.is_available():
        return
    timed = timer(torch, auto)
    package, module = torch.distributed, torch.distributed.distributed_c10d
    for name in NAMES:
        if hasattr(module, name):
            call = timed(getattr(module, name))
            auto.collectives[call] = getattr(module, name)
            auto.patches.replace(module, name, call)
            if hasattr(package, name):
                auto.patches.replace(package, name, call)
    kind, reducer = torch.nn.parallel.DistributedDataParallel, package.Reducer
    wait = module.Work.wait
    recorded = auto.records.wrap(wait, "") if auto.records is not None else wait
    auto.patches.replace(module.Work, "wait", timed(recorded, traced=wait))
    for owner, name in ((kind, "_sync_buffers"), (reducer, "_rebuild_buckets")):
        auto.patches.replace(owner, name, timed(getattr(owner, name)))
    _watch_groups(torch, auto)
    make = kind.__init__

    @auto.patches.wrap("__init__", kind)
    def __init__(self, *args, **kwargs):
        try:
            make(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if not auto.removed:
            auto.training.reducer_created()
            auto.allow_start()


def timer(torch, auto):
    """A decorator for functions that may wait for other ranks.

    After `auto.remove()` a wrapper only calls the function, since other modules may have imported it by name.
    """
    phase, recorder, training = auto.communication, auto.recorder, auto.training
    is_compiling = torch.compiler.is_dynamo_compiling
    word, in_backward, records = phase.total, backward_runs_here(torch), auto.records
    whole = frozenset(
        each.total for each in (phase, auto.checkpoint, auto.restore, auto.evaluation, auto.rollout)
    )

    def on_autograd_thread(function, args, kwargs):
        before, auto.waiting = auto.waiting, get_ident()
        auto.notify_device(recorder.current)
        try:
            return function(*args, **kwargs)
        finally:
            auto.notify_device(word)
            auto.waiting = before

    def timed(function, traced=None):
        """Wrap a function; a compiler traces `traced` in its place."""
        unmeasured = traced or function

        @functools.wraps(unmeasured)
        def call(*args, **kwargs):
            if is_compiling() or auto.removed:
                return unmeasured(*args, **kwargs)
            try:
                if recorder.thread == get_ident():
                    if recorder.current in whole or training.evaluating:
                        return function(*args, **kwargs)
                    if records is None:
                        return phase.run(function, *args, **kwargs)
                    try:
                        return phase.run(function, *args, **kwargs)
                    finally:
                        records.settle()
                if training.evaluating or recorder.device is None:
                    return function(*args, **kwargs)
                if auto.waiting == get_ident() or not in_backward():
                    return function(*args, **kwargs)
                return on_autograd_thread(function, args, kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise

        return call

    return timed


def backward_runs_here(torch):
    """A function that returns whether the calling thread runs a backward pass."""
    task_id = torch._C._current_graph_task_id
    return lambda: task_id() != -1


def _watch_groups(torch, auto) -> None:
    """Open the rank page when the process group is created, with the group's rank and world size."""
    package, module = torch.distributed, torch.distributed.distributed_c10d
    init, recorder = module.init_process_group, auto.recorder

    @auto.patches.wrap("init_process_group", module, package)
    def init_process_group(*args, **kwargs):
        # If the launcher or the call names the rank, the page is open while the ranks wait for each other.
        if not auto.removed:
            auto.attempt(start_before, kwargs)
        waits = (
            not auto.removed and recorder.thread == get_ident() and not recorder.depth and not recorder.steps
        )
        phase = auto.attempt(auto.session.phases.define, PEERS, "startup") if waits else None
        try:
            result = init(*args, **kwargs) if phase is None else phase.run(init, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if not auto.removed:
            auto.attempt(start_session)
        return result

    def start_before(kwargs: dict) -> None:
        rank, world_size = kwargs.get("rank", -1), kwargs.get("world_size", -1)
        if "rank" in from_environment(auto.session.environ):
            auto.allow_start()
        elif type(rank) is type(world_size) is int and 0 <= rank < world_size:
            auto.session.set_rank(rank, world_size)
            auto.allow_start()

    def start_session() -> None:
        auto.session.set_rank(module.get_rank(), module.get_world_size())
        auto.allow_start()
