"""The FLOP/s that one core of this machine attains: the best of several float32 matrix products of 512 × 512.

It is a measured peak; the processor's theoretical one is higher. It takes 0.2 s, and is too low on a busy machine, so
measure before the ranks start. NumPy is imported late: its BLAS reads ONE_THREAD from the environment on import.
"""

from __future__ import annotations

import time

# One thread per rank: OpenBLAS, OpenMP builds and MKL each read a variable of their own.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measured_peak_flops_per_second() -> float:
    import numpy as np

    size = 512
    left, right = np.random.default_rng(0).standard_normal((2, size, size), dtype=np.float32)
    product = np.matmul(left, right)  # Warms the caches.
    best_ns, end_ns = float("inf"), time.monotonic_ns() + 200_000_000
    while time.monotonic_ns() < end_ns:
        start_ns = time.perf_counter_ns()
        np.matmul(left, right, out=product)
        best_ns = min(best_ns, time.perf_counter_ns() - start_ns)
    return 2 * size**3 / best_ns * 1e9


if __name__ == "__main__":
    print(measured_peak_flops_per_second())
