"""What `goodput probe` measured on a node, the day before the simulation began."""

from __future__ import annotations

import numpy as np

from goodput.simulate.scenario import DEVICE

AGE_SECONDS = 86_400.0
OF_GPU = {"gemm_bf16": 7.1e14, "h2d_pinned": 5.5e10, "d2h_pinned": 5.4e10}
OF_NODE = {"memory_host": 4.2e11, "storage_write": 2.9e9, "storage_read": 6.4e9}
FILES = {"small_files": 8_000.0, "small_files_8_readers": 51_000.0}


def add(node) -> None:
    node.gauge("goodput_probe_age_seconds", AGE_SECONDS + np.asarray(node.times))
    for index in range(len(node.busy)):
        gpu = {"index": str(index), "device": DEVICE}
        for figure, value in OF_GPU.items():
            unit = "flops" if figure.startswith("gemm") else "bytes"
            node.gauge(f"goodput_probe_{unit}_per_second", value, figure=figure, **gpu)
    for unit, figures in (("bytes", OF_NODE), ("files", FILES)):
        for figure, value in figures.items():
            node.gauge(f"goodput_probe_{unit}_per_second", value, figure=figure, index="", device="")
