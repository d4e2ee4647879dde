"""GPU performance monitoring (GPM) by NVML: how busy the units of a GPU were between two samples. Hopper and later.

In: the binding and a device's handle; for a MIG instance its parent's handle and the id of its GPU instance. Out:
`activity/...` ratios and `link_rate/...` in bytes per second, each the mean over the time between the two samples.
GPM needs no profiler's lock, so that it runs beside one. NVML's reference: nvmlGpmMetricId_t gives percent, and MiB/s for
links. Metrics are asked with one call for all; one that the device does not have is left out.
A `Gpm` holds two samples, which `close` gives back; a third is never allocated.

    gpm = Gpm(nvml, handle); gpm.take(1); …; gpm.take(2); gpm.read(metrics)   # {"activity/sm": 0.42, …}
"""

from __future__ import annotations

from goodput_exporters.gpu.nvml.queries import MIB, PERCENT

# NVML_GPM_METRIC_*: (key, factor to base units).
METRICS = {
    1: ("activity/engine", PERCENT),
    2: ("activity/sm", PERCENT),
    3: ("activity/sm_occupancy", PERCENT),
    5: ("activity/tensor", PERCENT),
    10: ("activity/dram", PERCENT),
    11: ("activity/fp64", PERCENT),
    12: ("activity/fp32", PERCENT),
    13: ("activity/fp16", PERCENT),
    20: ("link_rate/pcie/transmit", MIB),
    21: ("link_rate/pcie/receive", MIB),
    60: ("link_rate/nvlink/receive", MIB),
    61: ("link_rate/nvlink/transmit", MIB),
}


def metrics_of(nvml):
    """The request that all devices share: the binding's struct takes some 20 KiB."""
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version = nvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(METRICS)
    for place, number in enumerate(METRICS):
        request.metrics[place].metricId = number
    return request


class Gpm:
    """The last two samples of one device."""

    def __init__(self, nvml, handle, gpu_instance: int | None = None):
        """Raises the binding's NVMLError where samples cannot be had."""
        self._nvml, self._handle, self._gpu_instance = nvml, handle, gpu_instance
        self._older = nvml.nvmlGpmSampleAlloc()
        try:
            self._newer = nvml.nvmlGpmSampleAlloc()
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(self._older)
            raise
        # The rounds in which the two were taken; -1 for never.
        self._older_round = self._newer_round = -1

    def take(self, round_number: int) -> None:
        """Take a sample over the older of the two. Raises NVMLError; then the next pair starts anew."""
        self._older, self._newer = self._newer, self._older
        self._older_round, self._newer_round = self._newer_round, -1
        if self._gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, self._newer)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._gpu_instance, self._newer)
        self._newer_round = round_number

    def is_ready(self) -> bool:
        """Whether the two samples are of neighbouring rounds, so that all devices' windows are the same."""
        return self._older_round >= 0 and self._newer_round == self._older_round + 1

    def read(self, request) -> dict[str, float]:
        """Readings between the two samples; a metric that failed is left out. Raises NVMLError."""
        request.sample1, request.sample2 = self._older, self._newer
        self._nvml.nvmlGpmMetricsGet(request)
        readings = {}
        for place, (key, factor) in enumerate(METRICS.values()):
            metric = request.metrics[place]
            if metric.nvmlReturn == 0:
                readings[key] = metric.value * factor
        return readings

    def close(self) -> None:
        for sample in (self._older, self._newer):
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:
                pass
