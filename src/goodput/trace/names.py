"""Classifies trace events by category and name: a role (who wrote the event) and a kind (what it does).

The lists cover what Kineto has written since PyTorch 1.8 for NVIDIA, AMD, Intel, MTIA and HPU devices, what
torch.autograd.profiler exports, and how NCCL, RCCL and other collective libraries name their kernels. Kineto's other
backends keep its pattern, with a prefix of their own (`mlu_memcpy`, `privateuse1_runtime`). An event of any other
category is device work if it has a device, a stream and a correlation id; the rest is ignored and counted."""

from __future__ import annotations

import re
from functools import lru_cache

# Roles: who wrote the event.
IGNORED, OPERATOR, RUNTIME, ANNOTATION, FRAME, KERNEL, COPY, UNKNOWN = range(8)
# Kinds of device events.
COMPUTE, COMMUNICATION, COPYING = range(3)
KINDS = ("compute", "communication", "copy")
# Kinds of host events. WIRE is a collective in progress on the network; CALL is a thread inside a collective call; WEAK
# is an annotation or a Python frame, which shows that the host was active but not what it did.
LOADER, SYNC, CALL, BUSY, WEAK, WIRE, STEP = range(7)

_CATEGORIES = {
    KERNEL: ("kernel", "concurrent_kernel", "mtia_ccp_events"),
    COPY: ("gpu_memcpy", "gpu_memset", "memcpy", "memset"),
    OPERATOR: ("cpu_op", "operator", "cpu op"),
    RUNTIME: ("runtime", "driver", "hpu_op"),
    ANNOTATION: ("user_annotation", "annotation"),
    FRAME: ("python_function", "python function"),
    IGNORED: (
        *("gpu_user_annotation", "trace", "overhead", "cuda_sync", "cuda_event", "fwdbwd", "ac2g"),
        *("async_cpu_to_gpu", "cpu_instant_event", "external_correlation", "__metadata"),
        *("gpu_pm_counter", "collective_comm", "mtia_counters"),
    ),
}
_ROLES = {category: role for role, categories in _CATEGORIES.items() for category in categories}
_SUFFIXES = {
    "_kernel": KERNEL,
    "_memcpy": COPY,
    "_memset": COPY,
    "_runtime": RUNTIME,
    "_driver": RUNTIME,
    **dict.fromkeys(("_user_annotation", "_sync", "_event", "_profiler_range", "_scope_profiler"), IGNORED),
}
_OTHER_DEVICES = ("MTIA", "HPU", "MLU", "GCU")
# Habana's device events have the category of its host calls, and an engine: TPC and MME compute.
_HPU_ENGINES = re.compile(r"(?P<nic>NIC|STM_\d_(RX|TX|QPC|QMAN))|(?P<dma>DMA)", re.IGNORECASE)
CACHED_NAMES_MAX = 8192  # a trace has some hundred names, each thousands of times
# Only before the first "<", "(" or space of the name; "small_reduce" is not "all_reduce".
_COLLECTIVE = re.compile(
    r"^(void\s+)?(\w+::)*\w*?((?i:nccl|rccl|msccl|hccl|oneccl|nvshmem|deep_ep|userbuffers|cross_device_reduce)"
    r"|(?<![a-zA-Z])(?i:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
    r"|AllReduce|AllGather|ReduceScatter|AllToAll)"
)
# ROCm copies with kernels of its own, and older versions give the copy engine's work these names.
_COPIES = re.compile(
    r"^(__amd_rocclr_(copy|fill)|Copy(Host|Device)To(Host|Device)|FillBuffer|Memcpy|Memset)", re.IGNORECASE
)
_TO_DEVICE = re.compile(r"^(memcpy HtoD|CopyHostToDevice)", re.IGNORECASE)
_TO_HOST = re.compile(r"^(memcpy DtoH|CopyDeviceToHost)", re.IGNORECASE)
_DEVICE_WAITS = re.compile(r"(Device|Ctx)Synchronize$")
_WAITS = re.compile(r"Synchronize|HostSynchronize|urEventWait|urQueueFinish")
# What a call of the host waits for.
DEVICE, STREAM = "device", "stream"
# Runtime calls that launch device work.
LAUNCHES = re.compile(r"Launch|Memcpy|Memset|Enqueue|Append|Submit|Dispatch", re.IGNORECASE)
_WIRES = re.compile(r"^(gloo|mpi|ucc):")
_CALLS = re.compile(r"^(c10d(_functional)?::|_c10d_functional::|record_param_comms|nccl:)")
PARAM_COMMS = "record_param_comms"  # the host's event with the arguments of a collective
_LOADERS = re.compile(
    r"^enumerate\(Data(Loader|Pipe)\)|train_dataloader_next$|torch/utils/data/dataloader\.py\(\d+\): __next__$"
)
_MARKS = ("Optimizer.", "DistributedDataParallel.", "FullyShardedDataParallel.")


def role(category, pid) -> int:
    """Who wrote an event of this category; without a category, by the name of the process."""
    if not isinstance(category, str):
        by_process = {"CPU functions": OPERATOR, "CUDA functions": KERNEL}
        return by_process.get(pid, UNKNOWN) if category is None and isinstance(pid, str) else UNKNOWN
    found = _ROLES.get(category)
    if found is not None:
        return found
    lower = category.lower()
    found = _ROLES.get(lower)
    if found is not None:
        return found
    return next((kind for suffix, kind in _SUFFIXES.items() if lower.endswith(suffix)), UNKNOWN)


def role_by_arguments(which: int, category, args) -> int:
    """The role of an event whose category alone does not decide it: UNKNOWN, or RUNTIME of `hpu_op`."""
    if type(args) is not dict:
        return which
    if category == "hpu_op" and args.get("HW event name"):
        return KERNEL
    on_device = type(args.get("device")) is int and "stream" in args and "correlation" in args
    return KERNEL if which == UNKNOWN and isinstance(category, str) and on_device else which


def hpu_kind(engine) -> int | None:
    """The kind of a Habana device event by its `HW event name`; None for any other event."""
    if not isinstance(engine, str):
        return None
    found = _HPU_ENGINES.search(engine)
    return COMPUTE if found is None else COMMUNICATION if found["nic"] else COPYING


def device_label(category) -> str:
    """What devices of this category are called: GPU, or the prefix of a category that names another kind."""
    prefix = category.split("_")[0].upper() if isinstance(category, str) else ""
    return prefix if prefix in _OTHER_DEVICES else "GPU"


def is_to_device(name: str) -> bool:
    """Whether device work of this name copies from host memory to the device."""
    return _TO_DEVICE.match(name) is not None


def is_to_host(name: str) -> bool:
    """Whether device work of this name copies from the device to host memory."""
    return _TO_HOST.match(name) is not None


def waits_for(name: str) -> str | None:
    """What a runtime call waits for: DEVICE, STREAM, or None for an event and what is not known."""
    return DEVICE if _DEVICE_WAITS.search(name) else STREAM if name.endswith("StreamSynchronize") else None


@lru_cache(CACHED_NAMES_MAX)
def device_kind(which: int, name: str) -> int:
    """COMPUTE, COMMUNICATION or COPYING, for a KERNEL or COPY."""
    if which == COPY or _COPIES.match(name):
        return COPYING
    return COMMUNICATION if _COLLECTIVE.match(name) else COMPUTE


@lru_cache(CACHED_NAMES_MAX)
def host_kind(which: int, name: str) -> int:
    """The kind of an OPERATOR, RUNTIME, ANNOTATION or FRAME event."""
    if which == RUNTIME:
        return SYNC if _WAITS.search(name) else BUSY
    if _LOADERS.search(name):
        return LOADER
    if which == FRAME:
        return WEAK
    if name.startswith("ProfilerStep"):
        return STEP
    if _WIRES.match(name):
        return WIRE
    if _CALLS.match(name):
        return CALL
    return WEAK if which == ANNOTATION or name.startswith(_MARKS) else BUSY
