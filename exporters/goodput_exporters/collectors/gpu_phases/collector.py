"""What each GPU did in which phase of its rank: activity, energy, and what of it was estimated.

In: the drivers' samples, handed over by `hear` as they come, and the living ranks, by `follow`. Out: the
`goodput_gpu_activity_seconds_total`, `goodput_gpu_phase_*` series, and per rank process the figures of its GPU that
the account's state `launch` and its energy are made of (`told`). A sample costs about 0.2 ms with 8 GPUs and ranks.

Guarantee: a GPU of which nothing came for KEPT_SECONDS has no series any more. It does not know drivers or pages;
phase_join.py has the arithmetic.

    phases = GpuPhases(settings); phases.follow(ranks); phases.hear(sample); phases.told(report)
"""

from __future__ import annotations

import threading

from msgspec.structs import replace

from goodput.wire import schema
from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collectors.gpu_phases.phase_attribution import PhaseJoin
from goodput_exporters.gpu.sample import Sample
from goodput_exporters.system.ranks import RankKey, rank_key

KEPT_SECONDS = 3600.0


class GpuPhases:
    name = "gpu_phases"

    def __init__(self, settings: Settings):
        self._monotonic_ns = settings.monotonic_ns
        self._ranks = None
        self._lock = threading.Lock()  # Drivers tell in threads of their own.
        self._join = PhaseJoin()
        self._since_ns = settings.unix_ns()

    def follow(self, ranks) -> None:
        """Take the living ranks from `ranks.now()`."""
        self._ranks = ranks

    def hear(self, sample: Sample) -> None:
        """A driver's sample, just made."""
        with self._lock:
            ranks = self._ranks.now() if self._ranks is not None else []
            self._join.take(sample, ranks)
            self._forget_old()

    def told(self, report: schema.RankReport) -> schema.RankReport:
        """The report with what the rank's GPU did."""
        with self._lock:
            hardware = self._join.hardware.get(rank_key(report.identity))
            figures = hardware.figures() if hardware else {}
        if figures:
            figures["since_ns"] = self._since_ns
        return replace(report, live=replace(report.live, hardware=figures)) if figures else report

    def forget(self, key: RankKey) -> None:
        """A rank process is done with."""
        with self._lock:
            self._join.forget(key)

    def ranks_on(self, uuid: str) -> list[tuple[str, int]]:
        """(run, rank) of the processes that were on a GPU at its last sample."""
        with self._lock:
            track = self._join.tracks.get(uuid)
            return [key[:2] for key in track.totals] if track else []

    def collect(self, families) -> None:
        with self._lock:
            self._forget_old()
            if not self._join.tracks:
                raise NoData("no driver has told of a GPU")
            for uuid, track in sorted(self._join.tracks.items()):
                of_gpu = {"gpu": uuid}
                for phase, ns in sorted(track.covered.items()):
                    families.add("goodput_gpu_phase_seconds_total", {**of_gpu, "phase": phase}, ns / 1e9)
                for unit, parts in sorted(track.active.items()):
                    for phase, ns in sorted(parts.items()):
                        labels = {**of_gpu, "phase": phase, "unit": unit}
                        families.add("goodput_gpu_activity_seconds_total", labels, ns / 1e9)
                for phase, microjoules in sorted(track.energy.items()):
                    labels = {**of_gpu, "phase": phase}
                    families.add("goodput_gpu_phase_energy_joules_total", labels, microjoules / 1e6)
                if track.covered:
                    families.add("goodput_gpu_phase_mixed_seconds_total", of_gpu, track.mixed_ns / 1e9)

    def _forget_old(self) -> None:
        oldest_ns = self._monotonic_ns() - int(KEPT_SECONDS * 1e9)
        for uuid in [u for u, track in self._join.tracks.items() if track.monotonic_ns < oldest_ns]:
            del self._join.tracks[uuid]
