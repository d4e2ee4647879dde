"""The FLOP/s that this machine's CPU attains in matrix products, measured once and kept in a file of the user's.

A CPU's peak does not follow from its name: clock, vector units and the library decide. So it is measured, by the best of many
products of two square matrices in the run's dtype, for about a second, while no training runs. Only products during
which all threads had a core count; on a machine too busy for one the peak stays unknown. The first PROBES_MAX reports
and every `goodput probe` measure; the best counts. The file's entries are by host, CPU, threads, dtype and version of
PyTorch.

    name = device_name(threads=8)                   # "AMD EPYC 7B13, 8 threads"
    known_peak(name, "fp32", torch.__version__)     # None until measured
    measured_peak(name, "fp32")                     # measures, and remembers
    measure(name, "fp32")                           # measures in any case
"""

from __future__ import annotations

import json
import re
import socket
import time

from goodput import user_cache
from goodput.defaults import CPU_NAME

FILE = "cpu-peaks.json"
SECONDS = 1.0
PROBES_MAX = 3
SIZES = (512, 512, 1024, 2048)
# Of the CPU time that all threads could use during a product: less means that other processes had a core.
CPU_SHARE_LEAST = 0.9
FILE_BYTES_MAX = 256 << 10
ENTRIES_MAX = 256
_NAME = re.compile(CPU_NAME)
_DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def device_name(threads: int) -> str:
    """The CPU's model and the threads that one rank computes with."""
    model = "CPU"
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            line = next((line for line in file if line.startswith("model name")), "")
        model = " ".join(line.partition(":")[2].split()) or model
    except OSError:
        pass
    return f"{model[:100]}, {threads} thread{'s' if threads != 1 else ''}"


def threads_of(device: str) -> int | None:
    """The threads in a name of `device_name`; None for another device."""
    found = _NAME.match(device)
    return int(found[1]) if found else None


def known_peak(device: str, dtype: str, version: str) -> float | None:
    """The remembered peak, FLOP/s; None if it was not measured here with this version of PyTorch."""
    return _known(_read().get(_key(device, dtype, version)))[0]


def measured_peak(device: str, dtype: str) -> float | None:
    """The remembered peak, or one measured now.

    None for other devices and dtypes, without PyTorch, and while other processes use the CPU.
    """
    version = _version(device, dtype)
    if version is None:
        return None
    found, probes = _known(_read().get(_key(device, dtype, version)))
    if found is None or probes < PROBES_MAX:
        measured = measure(device, dtype)
        found = max(found or 0.0, measured) if measured else found
    return found


def measure(device: str, dtype: str) -> float | None:
    """The peak measured now, which the file then knows, or None as `measured_peak`."""
    threads, version = threads_of(device), _version(device, dtype)
    if threads is None or version is None:
        return None
    import torch

    measured = _measure(torch, getattr(torch, _DTYPES[dtype]), threads)
    if measured:
        key = _key(device, dtype, version)
        found, probes = _known(_read().get(key))
        _remember(key, max(found or 0.0, measured), min(probes + 1, PROBES_MAX))
    return measured or None


def _version(device: str, dtype: str) -> str | None:
    """PyTorch's, if it is there and this machine's CPU with this dtype can be measured."""
    threads = threads_of(device)
    if threads is None or dtype not in _DTYPES or device != device_name(threads):
        return None
    try:
        import torch
    except ImportError:
        return None
    return torch.__version__


def _measure(torch, dtype, threads: int) -> float:
    """FLOP/s; 0 if no product had a core for each thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        end_ns = time.monotonic_ns() + round(SECONDS * 1e9)
        return max(_best_rate(torch, dtype, size, threads, end_ns) for size in SIZES)
    finally:
        torch.set_num_threads(before)


def _best_rate(torch, dtype, size: int, threads: int, end_ns: int) -> float:
    """The best FLOP/s of products of this size, measured for a part of SECONDS, at least once; 0 if none counts."""
    left, right = (torch.ones(size, size, dtype=dtype) for _ in range(2))
    product, best_ns = torch.mm(left, right), float("inf")
    end_ns = min(end_ns, time.monotonic_ns() + round(SECONDS * 1e9 / len(SIZES)))
    while True:
        start_ns, start_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        torch.mm(left, right, out=product)
        cpu_ns, ns = time.process_time_ns() - start_cpu_ns, time.perf_counter_ns() - start_ns
        if cpu_ns >= CPU_SHARE_LEAST * threads * ns:
            best_ns = min(best_ns, ns)
        if time.monotonic_ns() >= end_ns:
            return 2 * size**3 / best_ns * 1e9


def _known(entry: object) -> tuple[float | None, int]:
    """The peak in an entry of the file and how often it was measured; (None, 0) for one that is no entry."""
    if not isinstance(entry, list) or len(entry) != 2 or not all(isinstance(n, int | float) for n in entry):
        return None, 0
    return (float(entry[0]), int(entry[1])) if 0 < entry[0] < 1e30 and entry[1] < 100 else (None, 0)


def _key(device: str, dtype: str, version: str) -> str:
    return f"{socket.gethostname()}|{device}|{dtype}|torch {version}"


def _read() -> dict:
    try:
        with open(user_cache.path_of(FILE), encoding="utf-8") as file:
            found = json.loads(file.read(FILE_BYTES_MAX))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _remember(key: str, peak: float, probes: int) -> None:
    entries = {**dict(list(_read().items())[1 - ENTRIES_MAX :]), key: [peak, probes]}
    # If it cannot be written, the peak is measured again the next time.
    user_cache.replace(user_cache.path_of(FILE), json.dumps(entries))
