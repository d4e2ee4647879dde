"""GPU activity and energy by the phase of the rank that uses the GPU.

Drivers' samples come in through `add_sample`; `with_gpu_totals` adds to a rank's report what the account's state
`launch` and its energy are computed from. About 0.2 ms per sample with 8 GPUs and ranks. A GPU without a sample for
KEPT_SECONDS loses its series.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from msgspec.structs import replace

from goodput.metrics import CATALOGUE, Families
from goodput.wire import schema
from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collectors.gpu_phases.phase_attribution import PhaseAttribution
from goodput_exporters.gpu.sample import Sample
from goodput_exporters.system.ranks import RankKey, RankPhases, rank_key

KEPT_SECONDS = 3600.0
SECONDS, ACTIVITY, JOULES = (
    *("goodput_gpu_phase_seconds_total", "goodput_gpu_activity_seconds_total"),
    "goodput_gpu_phase_energy_joules_total",
)
# As many as 64 GPUs have with 32 phases; of more, some are made anew.
ROWS_MAX = 16_384


class GpuPhases:
    """`ranks` returns the living ranks with their phase totals at this moment."""

    name = "gpu_phases"

    def __init__(self, settings: Settings):
        self._monotonic_ns = settings.monotonic_ns
        self.ranks: Callable[[], list[RankPhases]] = list
        self._lock = threading.Lock()  # samples come in the drivers' threads
        self._attribution = PhaseAttribution()
        self._since_ns = settings.unix_ns()

    def add_sample(self, sample: Sample) -> None:
        """Take a driver's sample as soon as it was taken."""
        with self._lock:
            self._attribution.add_sample(sample, self.ranks())
            self._drop_old()

    def with_gpu_totals(self, report: schema.RankReport) -> schema.RankReport:
        with self._lock:
            key = rank_key(report.identity)
            totals = self._attribution.ranks.get(key)
            fields = totals.as_live_fields() if totals else {}
            if report.live.alive:
                fields |= self._attribution.now_of(key, self._monotonic_ns())
        if not fields:
            return report
        hardware = {**fields, "since_ns": self._since_ns}
        return replace(report, live=replace(report.live, hardware=hardware))

    def forget(self, key: RankKey) -> None:
        """Drop a rank process that has ended and was reported."""
        with self._lock:
            self._attribution.ranks.pop(key, None)

    def ranks_on(self, uuid: str) -> list[tuple[str, int]]:
        """(run, rank) of the processes that used a GPU at its last sample."""
        with self._lock:
            gpu = self._attribution.gpus.get(uuid)
            return [(key.run, key.rank) for key in gpu.rank_totals_ns] if gpu else []

    def collect(self, families) -> None:
        with self._lock:
            self._drop_old()
            if not self._attribution.gpus:
                raise NoData("no driver has sampled a GPU")
            for uuid, gpu in sorted(self._attribution.gpus.items()):
                for phase, ns in sorted(gpu.covered_ns.items()):
                    families.add_row(SECONDS, _row(SECONDS, uuid, phase), ns / 1e9)
                for unit, by_phase in sorted(gpu.active_ns.items()):
                    for phase, ns in sorted(by_phase.items()):
                        families.add_row(ACTIVITY, _row(ACTIVITY, uuid, phase, unit), ns / 1e9)
                for phase, energy_uj in sorted(gpu.energy_uj.items()):
                    families.add_row(JOULES, _row(JOULES, uuid, phase), energy_uj / 1e6)
                if gpu.covered_ns:
                    seconds = gpu.mixed_ns / 1e9
                    families.add("goodput_gpu_phase_mixed_seconds_total", {"gpu": uuid}, seconds)

    def _drop_old(self) -> None:
        oldest_ns = self._monotonic_ns() - int(KEPT_SECONDS * 1e9)
        gpus = self._attribution.gpus
        for uuid in [uuid for uuid, gpu in gpus.items() if gpu.sampled_ns < oldest_ns]:
            del gpus[uuid]


@functools.lru_cache(ROWS_MAX)
def _row(name: str, gpu: str, phase: str, unit: str = "") -> tuple[str, ...]:
    """The label values of a series."""
    labels = {"gpu": gpu, "phase": phase, "unit": unit}
    return Families("node").row_of(name, {label: labels[label] for label in CATALOGUE[name].labels})
