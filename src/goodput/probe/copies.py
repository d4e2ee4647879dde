"""Bytes a second of memory and of copies between host and accelerator."""

from __future__ import annotations

import time

from goodput.probe.figure import Figure, rate_of

BYTES = 256 << 20
SECONDS = 0.5
CPU_BYTES = 64 << 20


def host_memory(size: int = CPU_BYTES, seconds: float = SECONDS) -> list[Figure]:
    """Copies within the host's memory with all of PyTorch's threads; a byte copied counts as one read and one written."""
    import torch

    source, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    rate, spread = rate_of(2 * size, _repeat(lambda: target.copy_(source), lambda: None, seconds))
    return [Figure("memory_host", rate, "B/s", threads(torch.get_num_threads()), spread=spread)]


def on_gpu(index: int) -> list[Figure]:
    """Between host and this GPU, pinned and pageable, each way; and within the GPU's memory, read and written."""
    import torch

    device = torch.device("cuda", index)
    name = torch.cuda.get_device_name(device)
    there, elsewhere = (torch.empty(BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    found = []
    for kind, host in (
        ("pinned", torch.ones(BYTES, dtype=torch.uint8).pin_memory()),
        ("pageable", torch.ones(BYTES, dtype=torch.uint8)),
    ):
        found.append(("h2d_" + kind, BYTES, lambda host=host: there.copy_(host, non_blocking=True)))
        found.append(("d2h_" + kind, BYTES, lambda host=host: host.copy_(there, non_blocking=True)))
    found.append(("memory_device", 2 * BYTES, lambda: elsewhere.copy_(there)))
    figures = []
    for figure, amount, copy in found:
        times = _repeat(copy, lambda: torch.cuda.synchronize(device), SECONDS)
        rate, spread = rate_of(amount, times)
        figures.append(Figure(figure, rate, "B/s", name, index, spread))
    return figures


def threads(count: int) -> str:
    return f"{count} thread{'s'[count == 1 :]}"


def _repeat(copy, wait, seconds: float) -> list[float]:
    """Seconds of each copy, after one that maps the pages."""
    copy()
    wait()
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 5:
        start = time.perf_counter()
        copy()
        wait()
        times.append(time.perf_counter() - start)
    return times
