"""NVML's GPU performance monitoring (GPM): activity of a GPU's units between two samples. Hopper and later.

Unlike DCGM's profiling fields, GPM needs no exclusive access, so it works beside a profiler. A `Gpm` allocates two
samples, which `close` frees.

    gpm = Gpm(nvml, handle); gpm.take(1); …; gpm.take(2); gpm.read(request)   # {"activity/sm": 0.42, …}
"""

from __future__ import annotations

import contextlib

from goodput_exporters.gpu.nvml.queries import MIB, PERCENT, number_of

# NVML_GPM_METRIC_*: (key, factor to base units).
METRICS = {
    1: ("activity/engine", PERCENT),
    2: ("activity/sm", PERCENT),
    3: ("activity/sm_occupancy", PERCENT),
    4: ("activity/integer", PERCENT),
    5: ("activity/tensor", PERCENT),
    6: ("activity/tensor_dfma", PERCENT),
    7: ("activity/tensor_hmma", PERCENT),
    9: ("activity/tensor_imma", PERCENT),
    10: ("activity/dram", PERCENT),
    11: ("activity/fp64", PERCENT),
    12: ("activity/fp32", PERCENT),
    13: ("activity/fp16", PERCENT),
    20: ("link_rate/pcie/transmit", MIB),
    21: ("link_rate/pcie/receive", MIB),
    60: ("link_rate/nvlink/receive", MIB),
    61: ("link_rate/nvlink/transmit", MIB),
    100: ("link_rate/c2c/transmit", MIB),
    101: ("link_rate/c2c/receive", MIB),
}


def metrics_request(nvml):
    """The request for all METRICS, shared by all devices: the binding's struct takes 20 KiB."""
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version = nvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(METRICS)
    for place, number in enumerate(METRICS):
        request.metrics[place].metricId = number
    return request


class Gpm:
    """The last two samples of one device. A MIG instance needs its GPU's handle and the id of its GPU instance."""

    def __init__(self, nvml, handle, gpu_instance: int | None = None):
        """Raises the binding's NVMLError."""
        self._nvml, self._handle, self._gpu_instance = nvml, handle, gpu_instance
        self._older = nvml.nvmlGpmSampleAlloc()
        try:
            self._newer = nvml.nvmlGpmSampleAlloc()
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(self._older)
            raise
        # The rounds in which the two were taken; -1: never.
        self._older_round = self._newer_round = -1

    def take(self, round_number: int) -> None:
        """Replace the older sample. Raises NVMLError; two new samples are needed then."""
        self._older, self._newer = self._newer, self._older
        self._older_round, self._newer_round = self._newer_round, -1
        if self._gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, self._newer)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._gpu_instance, self._newer)
        self._newer_round = round_number

    def is_ready(self) -> bool:
        """Whether the samples are from consecutive rounds, so that all devices have the same window."""
        return self._older_round >= 0 and self._newer_round == self._older_round + 1

    def read(self, request) -> dict[str, float]:
        """Readings between the two samples, without the metrics that failed. Raises NVMLError."""
        request.sample1, request.sample2 = self._older, self._newer
        self._nvml.nvmlGpmMetricsGet(request)
        readings = {}
        for (key, factor), metric in zip(METRICS.values(), request.metrics, strict=False):
            if number_of(metric, "nvmlReturn") == 0:
                readings[key] = number_of(metric, "value") * factor
        return readings

    def close(self) -> None:
        for sample in (self._older, self._newer):
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
