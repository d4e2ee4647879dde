"""FLOP/s of matrix products by dtype: the peak that a program can reach here.

On a CPU it is `goodput.flops.cpu_peak`, whose file also has the peaks for MFU.
"""

from __future__ import annotations

import time

from goodput.account.mfu.peaks import peak
from goodput.flops import cpu_peak
from goodput.probe.figure import Figure, rate_of

CPU_DTYPES = ("fp32", "bf16", "fp64")
GPU_DTYPES = ("fp8", "bf16", "fp16", "tf32", "fp32", "fp64")
GPU_SIZE = 8192
GPU_SECONDS = 1.0
# The two best of so many measurements of a CPU agree, or it is busy at times and measured again, for so long.
AGREEING = 3
AGREED_SHARE = 0.97
BUSY_SECONDS_MAX = 10.0
BUSY = "other processes use the CPU"
_TORCH = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
}


def on_cpu(dtypes: tuple[str, ...] = CPU_DTYPES) -> list[Figure]:
    """With the threads that PyTorch takes. Unknown on a machine too busy for one product with a core per thread."""
    import torch

    device = cpu_peak.device_name(torch.get_num_threads())
    return [_cpu_figure(device, dtype) for dtype in dtypes]


def _cpu_figure(device: str, dtype: str) -> Figure:
    end = time.monotonic() + BUSY_SECONDS_MAX
    rates: list[float] = []
    while time.monotonic() < end and not _agree(rates):
        rate = cpu_peak.measure(device, dtype)
        if rate:
            rates.append(rate)
            rates.sort(reverse=True)
    note = BUSY if not rates else "" if _agree(rates) else f"{BUSY}: it may reach more"
    return Figure(f"gemm_{dtype}", rates[0] if rates else None, "FLOP/s", device, note=note)


def _agree(rates: list[float]) -> bool:
    """Whether the best, which come first, are alike: what others take of the CPU differs from time to time."""
    return len(rates) >= AGREEING and rates[1] >= AGREED_SHARE * rates[0]


def on_gpu(index: int) -> list[Figure]:
    """Of one GPU: the median of products for a second in each dtype that it has."""
    import torch

    device = torch.device("cuda", index)
    name = torch.cuda.get_device_name(device)
    return [_gpu_figure(torch, device, name, dtype) for dtype in GPU_DTYPES]


def _gpu_figure(torch, device, name: str, dtype: str) -> Figure:
    nominal = peak(name, dtype)
    try:
        multiply = _product(torch, device, dtype)
        rate, spread = rate_of(2 * GPU_SIZE**3, _gpu_seconds(torch, multiply))
        return Figure(f"gemm_{dtype}", rate, "FLOP/s", name, device.index, spread, nominal)
    except (RuntimeError, AttributeError) as error:
        note = " ".join(str(error).split())[:100]
        return Figure(f"gemm_{dtype}", None, "FLOP/s", name, device.index, None, nominal, note)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def _product(torch, device, dtype: str):
    """A function that starts one product."""
    size = GPU_SIZE
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    # Random values: products of constants draw less power, so that the clock stays higher than in a training.
    left, right = (torch.randn(size, size, device=device).to(getattr(torch, _TORCH[dtype])) for _ in range(2))
    if dtype == "fp8":
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    out = torch.mm(left, right)
    return lambda: torch.mm(left, right, out=out)


def _gpu_seconds(torch, multiply) -> list[float]:
    """Seconds of each product, by the device's clock, after a third of the time as warm-up."""
    seconds: list[float] = []
    begin = time.monotonic()
    while (spent := time.monotonic() - begin) < GPU_SECONDS or len(seconds) < 5:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        multiply()
        end.record()
        end.synchronize()
        if spent > GPU_SECONDS / 3:
            seconds.append(start.elapsed_time(end) / 1e3)
    return seconds
