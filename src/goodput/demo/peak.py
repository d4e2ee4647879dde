"""The FLOP/s that one core of this machine attains, measured.

Comes in: nothing but the machine. Goes out: one number, to divide the model's FLOP/s by.

Guarantee: it is a measured attainable peak, the best of several float32 matrix products of 512 × 512, and so
no data sheet's figure: a processor's theoretical peak is higher. Takes 0.2 s. On a machine busy with other
work it comes out low, so measure before the ranks start.

Does not know: how many threads BLAS uses. BLAS reads its environment once, when NumPy is first imported, so
whoever starts a process has to put `ONE_THREAD` into its environment before; setting it later has no effect.
This file imports NumPy only inside the function, so that a launcher can read `ONE_THREAD` first.

    environment = {**os.environ, **ONE_THREAD}
    subprocess.run([sys.executable, "-c", "...measured_peak_flops_per_second()..."], env=environment)
"""

from __future__ import annotations

import time

# One thread per rank: OpenBLAS, OpenMP builds and MKL each read a variable of their own.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measured_peak_flops_per_second(seconds: float = 0.2, size: int = 512) -> float:
    """The best FLOP/s of repeated float32 products of two (size, size) matrices, 2 · size³ FLOPs each.

    Runs for about `seconds`, three products at least; the first, which warms the caches, does not count.
    """
    import numpy as np

    random = np.random.default_rng(0)
    left, right = random.standard_normal((2, size, size), dtype=np.float32)
    product = np.matmul(left, right)
    best_ns = float("inf")
    end_ns, rounds = time.monotonic_ns() + int(seconds * 1e9), 0
    while rounds < 3 or time.monotonic_ns() < end_ns:
        start_ns = time.perf_counter_ns()
        np.matmul(left, right, out=product)
        best_ns = min(best_ns, time.perf_counter_ns() - start_ns)
        rounds += 1
    return 2 * size**3 / best_ns * 1e9
