"""Records the calls of process groups in the rank page, unless GOODPUT_COLLECTIVES=0 or the extension is missing.

Every function of torch.distributed, FSDP, a pipeline or a user's own code calls a method of ProcessGroup, which is
wrapped. Functional collectives call theirs in C++: the operators are wrapped (functional.py). DistributedDataParallel's
Reducer calls its process group in C++, too: it gets a ProcessGroup made here, which shares the backends of the given one
and passes the reducer's calls to it. Communication hooks, the user's or PyTorch's own, work as before.
The end of `Work.wait` is recorded in communication.py.

Not seen: calls of other C++ code, such as functional collectives that AOTInductor runs in C++, of a CUDA
graph that is replayed, of libraries that use NCCL themselves, and of process groups that are Python classes.
"""

from __future__ import annotations

import functools
import weakref

from goodput.rank_page.collective_records import DTYPES, FLAG
from goodput.sdk.recorder.hot_path import extension
from goodput.user_exceptions import drop_own_frames, reraise_from_handler

MODULE = "torch"
RELIES_ON = """torch/distributed/distributed_c10d.py calls methods of ProcessGroup with tensors and options as positional
arguments. torch/csrc/distributed/c10d/init.cpp: the class ProcessGroup, with the methods of METHODS (older versions lack some), and
Reducer, which takes a process group. torch/csrc/distributed/c10d/PyProcessGroup.hpp: a Python subclass overrides what
C++ calls. torch/nn/parallel/distributed.py registers a hook with torch.distributed._register_comm_hook; the Reducer waits for
its future at the end of the backward pass. torch/csrc/distributed/c10d/reducer.cpp calls allreduce, broadcast and allgather, and of their Work only wait
and getFuture. pybind11's get_type_override calls no override from a frame of its name."""
# Operation, and the positions of this rank's part and of the root or peer, by method. Position 0 is the group.
METHODS = {
    **dict.fromkeys(("allreduce", "allreduce_coalesced"), ("all_reduce", 1, -1)),
    "broadcast": ("broadcast", 1, 2),
    "reduce": ("reduce", 1, 2),
    **dict.fromkeys(("allgather", "_allgather_base", "all_gather_single"), ("all_gather", 2, -1)),
    **dict.fromkeys(("allgather_coalesced", "all_gather_single_coalesced"), ("all_gather", 2, -1)),
    "allgather_into_tensor_coalesced": ("all_gather", 2, -1),
    "gather": ("gather", 2, 3),
    "scatter": ("scatter", 1, 3),
    **dict.fromkeys(("reduce_scatter", "_reduce_scatter_base"), ("reduce_scatter", 1, -1)),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_single_coalesced"), ("reduce_scatter", 1, -1)),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1, -1),
    **dict.fromkeys(("alltoall", "alltoall_base", "all_to_all_single"), ("all_to_all", 2, -1)),
    **dict.fromkeys(("barrier", "monitored_barrier"), ("barrier", -1, -1)),
    "send": ("send", 1, 2),
    "recv": ("recv", 1, 2),
    "recv_anysource": ("recv", 1, -1),
}


def apply(torch, auto) -> None:
    if auto.session.environ.get("GOODPUT_COLLECTIVES", "") == "0" or not torch.distributed.is_available():
        return
    if extension is None:
        return
    from goodput.sdk.recorder.collectives import CollectiveRecords  # It needs the extension.

    module = torch.distributed.distributed_c10d
    dtypes = {getattr(torch, name): i for i, name in enumerate(DTYPES) if hasattr(torch, name)}
    records = CollectiveRecords(auto.recorder, dtypes, _describer(module), module._resolve_process_group)
    kind = module.ProcessGroup
    for name, (operation, tensors, peer) in METHODS.items():
        method = vars(kind).get(name)
        if method is not None:
            positions = {"tensors": tensors, "group": 0, "peer": peer, "exact": (kind,)}
            positions["flags"] = FLAG["coalesced"] if name.endswith("_coalesced") else 0
            call = records.wrap(method, operation, python=_named(method, name), **positions)
            auto.patches.replace(kind, name, call)
    _watch_coalescing(auto, kind, records)
    _watch_reducers(torch, auto, kind, records)
    _watch_hooks(torch, auto, records)
    auto.records = records
    auto.recorder.set_collectives(records)


def _describer(module):
    """A function that returns what is stored of a process group."""

    def describe(group) -> tuple[str, str, str, int, list[int]]:
        try:
            ranks = list(module.get_process_group_ranks(group))
        except Exception as error:
            reraise_from_handler(error)
            ranks = list(range(group.size()))  # Of no known group: its own numbers.
        return group.group_name, group.group_desc, group.name(), group.rank(), ranks

    return describe


def _named(function, name: str):
    """The function as a Python function of this name with an argument `self`."""

    def call(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return call


def _watch_coalescing(auto, kind, records) -> None:
    start, end = kind._start_coalescing, kind._end_coalescing

    @auto.patches.wrap("_start_coalescing", kind)
    def _start_coalescing(self, *args, **kwargs):
        result = start(self, *args, **kwargs)
        records.coalesced = -1
        return result

    @auto.patches.wrap("_end_coalescing", kind)
    def _end_coalescing(self, *args, **kwargs):
        first, records.coalesced = records.coalesced, 0
        work = end(self, *args, **kwargs)
        records.issued_by(work, first)
        return work


def _watch_reducers(torch, auto, kind, records) -> None:
    """Give the reducers of DistributedDataParallel, and what synchronizes its buffers, a process group that records."""
    package, reducer = torch.distributed, torch.distributed.Reducer
    through = _Stand(_stand_in_class(kind, records), kind)

    def replaced(function, owner, name: str, keep: bool) -> None:
        @functools.wraps(function)
        def call(*args, **kwargs):
            if auto.removed:
                return function(*args, **kwargs)
            stands = []
            args = tuple(through.get(each, stands) for each in args)
            kwargs = {key: through.get(each, stands) for key, each in kwargs.items()}
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise
            if keep and stands:
                # C++ holds the group without keeping its Python methods alive.
                weakref.finalize(args[0], _nothing, *stands).atexit = False
            return result

        auto.patches.replace(owner, name, call)

    replaced(reducer.__init__, reducer, "__init__", keep=True)
    if hasattr(reducer, "_update_process_group"):
        replaced(reducer._update_process_group, reducer, "_update_process_group", keep=True)
    for name in ("_broadcast_coalesced", "_verify_params_across_processes"):
        if hasattr(package, name):
            replaced(getattr(package, name), package, name, keep=False)


def _watch_hooks(torch, auto, records) -> None:
    """Mark the calls of a communication hook as the reducer's, which waits for their futures in C++."""
    register = getattr(torch.distributed, "_register_comm_hook", None)
    if register is None:
        return

    def marked(hook):
        @functools.wraps(hook)
        def call(*args):
            before, records.reducing = records.reducing, 1
            try:
                return hook(*args)
            except BaseException as error:
                drop_own_frames(error)
                raise
            finally:
                records.reducing = before

        return call

    @auto.patches.wrap("_register_comm_hook", torch.distributed)
    def _register_comm_hook(reducer, state, comm_hook):
        return register(reducer, state, comm_hook if auto.removed else marked(comm_hook))


def _nothing(*_stands) -> None:
    pass


class _Stand:
    """Makes stand-ins for process groups, one for each while it is in use."""

    def __init__(self, make, kind):
        self.make, self.kind = make, kind
        self.made: weakref.WeakValueDictionary = weakref.WeakValueDictionary()

    def get(self, value, stands: list):
        """The stand-in of a process group, which is appended to `stands`; any other value as it is."""
        if type(value) is not self.kind:
            return value
        try:
            stand = self.made.get(id(value)) or self.make(value)
            self.made[id(value)] = stand
        except Exception as error:
            reraise_from_handler(error)
            return value  # Its calls are not recorded.
        stands.append(stand)
        return stand


def _stand_in_class(kind, records):
    class ReducerGroup(kind):
        """A process group with the backends of `group`, to which it passes calls that come from C++."""

        def __init__(self, group):
            super().__init__(group.rank(), group.size())
            self.group = group
            backend = getattr(kind.BackendType, group.name().upper(), kind.BackendType.CUSTOM)
            for device in group._device_types:
                self._register_backend(device, backend, group._get_backend(device))
            self._set_default_backend(backend)

        def allreduce(self, *args):
            return self._passed(self.group.allreduce, args)

        def broadcast(self, *args):
            return self._passed(self.group.broadcast, args)

        def allgather(self, *args):
            return self._passed(self.group.allgather, args)

        def _passed(self, method, args):
            before, records.reducing = records.reducing, 1
            try:
                return method(*args)
            finally:
                records.reducing = before

        def getBackendName(self):
            return self.group.name()

    return ReducerGroup
