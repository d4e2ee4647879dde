"""Counts the FLOPs of the first step's modules in a forked child, beside the training and only once.

The child inherits the modules, so nothing is copied in the trainer and no code of the user's is imported again. It
has one thread, the lowest priority, none of the trainer's files and signal handlers, and ends by itself. The trainer
never waits for it: the result comes through a page of shared memory, and after the training the child writes it into
the rank's page itself.

What the trainer pays, once, at the end of its first step, is the fork, which copies the page table: for each GiB of
private memory 1 ms where the kernel uses huge pages and 20 to 30 ms where not. A process with more than
PRIVATE_BYTES_MAX is not forked, nor is one in which a fork is unsafe. A page that both processes hold is copied when
the trainer writes it, 0.5 s for 1 GiB, so the child first gives up the data of all tensors (then 10 ms).
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import sys
import warnings
from time import perf_counter_ns

from goodput.rank_page import page
from goodput.user_exceptions import reraise_from_handler
from goodput.wire.identity import check_identity, clean_text

SECONDS_MAX, CPU_SECONDS_MAX = 600, 60  # of the child
NICENESS = 19  # of the child
PRIVATE_BYTES_MAX = 4 << 30
REASON_CHARACTERS_MAX = 200
# Shared memory: whether the result is there, whether the trainer has ended, the result's length and its text.
DONE, ENDED, LENGTH, TEXT = 0, 1, 2, 4
_MPI_VARIABLES = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK")
_FORK_SAFE_VARIABLES = ("RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "FI_EFA_FORK_SAFE")


class FlopCount:
    """One child. Raises OSError if none can be started.

    `calls` are (module, args, keywords, autocast, number of calls in the step).
    """

    def __init__(self, calls: list[tuple], auto):
        self.shared, words, began_ns = mmap.mmap(-1, mmap.PAGESIZE), auto.recorder.words, perf_counter_ns()
        # Until the child has put the user's signal handlers aside, none may run there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.parent, self.pid = os.getpid(), os.fork()
            if self.pid == 0:
                _child(calls, auto, self.shared, words, self.parent)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        cost_ns = perf_counter_ns() - began_ns
        auto.recorder.costs.add(cost_ns)
        auto.budget.counted_ns += cost_ns

    def poll(self) -> dict | None:
        """The declared fields that the child found, or why it found none; None while it runs."""
        ended = self._reap()
        if self.shared[DONE]:
            length = int.from_bytes(self.shared[LENGTH:TEXT], "little")
            return json.loads(self.shared[TEXT : TEXT + length])
        return (
            {"flops_unknown": "the child process that counted FLOPs ended without a result"}
            if ended
            else None
        )

    def trainer_ended(self) -> None:
        """From now on the child writes its result into the rank's page."""
        self.shared[ENDED] = 1

    def _reap(self) -> bool:
        """Whether the child has ended; then no zombie of it is left."""
        if self.pid and self.parent == os.getpid():
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    self.pid = 0
            except ChildProcessError:
                self.pid = 0  # Reaped by code that waits for any child.
        return self.pid == 0

    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._reap()


def reason_against_fork(torch, environ) -> str | None:
    """Why this process should not be forked now; None if nothing speaks against it."""
    private = _private_bytes()
    if not hasattr(os, "fork") or private is None:
        return "they are counted on Linux only"
    if private > PRIVATE_BYTES_MAX:
        return f"a process with {private >> 20} MiB of private memory is not forked to count them"
    if torch.compiler.is_compiling():
        return "the first step was being traced by torch.compile"
    method = _start_method()
    if method in ("spawn", "forkserver"):
        return f"the start method of multiprocessing is {method}, so the process is not forked to count them"
    if "mpi4py.MPI" in sys.modules or any(environ.get(name) for name in _MPI_VARIABLES):
        return "a process of MPI is not forked to count them"
    if _uses_rdma() and all(environ.get(name, "0") in ("", "0") for name in _FORK_SAFE_VARIABLES):
        return "a process that uses RDMA is not forked to count them unless RDMAV_FORK_SAFE=1"
    return "warnings are set to show or to raise that of a fork" if _fork_warns() else None


def _start_method() -> str | None:
    """The start method of multiprocessing that the user has set, None for the default: `forkserver` from 3.14 on."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return None
    method, default = (
        multiprocessing.get_start_method(allow_none=True),
        multiprocessing.get_all_start_methods()[0],
    )
    return None if method == default else method


def _private_bytes() -> int | None:
    """Anonymous memory of this process (RssAnon in /proc/self/status), None where that is not known."""
    try:
        with open("/proc/self/status", "rb") as file:
            line = next(line for line in file if line.startswith(b"RssAnon:"))
        return int(line.split()[1]) << 10
    except (OSError, StopIteration, ValueError, IndexError) as error:
        reraise_from_handler(error)
        return None


def _uses_rdma() -> bool:
    """Whether this process has an RDMA device open: InfiniBand, RoCE or EFA."""
    if not os.path.isdir("/dev/infiniband"):
        return False
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/dev/infiniband/"):
                return True
        except OSError as error:
            reraise_from_handler(error)
            continue  # The descriptor of the listing itself.
    return False


def _fork_warns() -> bool:
    """Whether Python's DeprecationWarning of a fork beside threads would be shown or raised. The default ignores it."""
    if sys.version_info < (3, 12):
        return False
    for action, message, category, module, line in warnings.filters:
        applies = message is None and issubclass(DeprecationWarning, category) and not line
        if applies and _is_of_module(module):
            return action != "ignore"
    return True


def _is_of_module(module) -> bool:
    """Whether a filter's module is this one: any, a name as in Python's own filters, or a pattern."""
    if module is None or isinstance(module, str):
        return module in (None, __name__)
    return module.match(__name__) is not None


def _child(calls: list[tuple], auto, shared, words, parent: int) -> None:
    """Count, leave the result, and end without the exit functions of the trainer."""
    try:
        _isolate()
        _drop_data()
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        auto.roots.stop_search()
        found = json.dumps(_counted(calls)).encode()
        shared[TEXT : TEXT + len(found)] = found
        shared[LENGTH:TEXT] = len(found).to_bytes(2, "little")
        shared[DONE] = 1
        if words is not None and (shared[ENDED] or os.getppid() != parent):
            publish(words, json.loads(found))
    finally:
        os._exit(0)


def publish(words, found: dict) -> None:
    """Add fields to the identity in the page of a training that has ended; what it declared itself wins."""
    identity = page.identity_of(words)
    if identity.get("flops_per_step") is None:
        page.rewrite_identity(words, check_identity({**identity, **found}))


def _isolate() -> None:
    """Give this forked process nothing of the trainer's that it could disturb, and bounds."""
    import resource

    gc.disable()
    sys.settrace(None)
    sys.setprofile(None)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(SECONDS_MAX)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.closerange(3, 1 << 16)


def _drop_data() -> None:
    """Unmap the data of the CPU's tensors from this process: counting needs their shapes alone."""
    import ctypes

    torch = sys.modules["torch"]
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    kinds = torch.Tensor, torch.nn.Parameter
    for tensor in gc.get_objects():
        if type(tensor) not in kinds or not tensor.is_cpu:
            continue
        try:
            storage = tensor.untyped_storage()
            address, length = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError):
            continue  # A sparse tensor, say, has no storage.
        begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (address + length) // mmap.PAGESIZE * mmap.PAGESIZE
        if address and end > begin:
            madvise(begin, end - begin, mmap.MADV_DONTNEED)


def _counted(calls: list[tuple]) -> dict:
    """The declared fields: model and hardware FLOPs summed over the calls, or the reason for which they are unknown."""
    from goodput.flops import FlopCountError, count

    model = hardware = 0
    try:
        _prepare_torch(sys.modules["torch"])
        for module, args, keywords, autocast, number in calls:
            counted = count(
                module, *args, autocast=autocast, microbatches=number, in_forked_process=True, **keywords
            )
            if counted.uncounted:
                raise FlopCountError(f"no formula for {', '.join(counted.uncounted)}")
            model, hardware = model + counted.model_flops, hardware + counted.hardware_flops
        if not model:
            raise FlopCountError("the modules of the first step have no matrix products")
    except Exception as error:
        reraise_from_handler(error)
        text = str(error) if isinstance(error, FlopCountError) else f"{type(error).__name__}: {error}"
        return {"flops_unknown": clean_text(" ".join(text.split()), REASON_CHARACTERS_MAX)}
    return {"flops_per_step": float(model), "hardware_flops_per_step": float(hardware)}


def _prepare_torch(torch) -> None:
    """One thread, since the pools of the trainer's threads are not here; and no question to the GPU."""
    torch.set_num_threads(1)
    if torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork():
        # Autocast in a forward pass calls these, and CUDA cannot answer in a forked process.
        torch.cuda.is_available = lambda: True
        torch.cuda.is_bf16_supported = lambda *_args, **_kwargs: True
