"""The series of one rank, from its latest snapshot, and its histograms.

Ages exist only for a live rank. Histogram bins are read at the scrape and sums come from the phase totals, so both only
grow; the histograms of a rank without progress since the last scrape are not read again. Cost: about 50 us for each
histogram that changed.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from goodput.histograms.histogram import (
    BINS,
    COUNT_MAX,
    LATENCY_BOUNDS,
    OCTAVE,
    OVERFLOW_SECONDS,
    STEP_BOUNDS,
)
from goodput.histograms.native_histogram import NativeHistogram
from goodput.rank_page.loader_words import parts_of, waits_of
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader, Snapshot
from goodput_exporters.collectors.ranks.bucket_counts import Binning, filled_parts
from goodput_exporters.collectors.ranks.rank import Rank
from goodput_exporters.collectors.ranks.recent_steps import QUANTILES

UNITS_PER_SECOND = 1 << 24  # fp16's smallest step is 2**-24
_STEP, _PHASE = Binning(STEP_BOUNDS), Binning(LATENCY_BOUNDS)

Buckets = list[tuple[str, int]]


def add_rank(families, rank: Rank, now_ns: int) -> None:
    """Add every series of a rank that was read but its histograms. `now_ns` is monotonic."""
    snapshot = rank.snapshot
    if snapshot is None:
        return
    of_rank = {"run": rank.identity.run, "rank": str(rank.identity.rank)}
    families.add("goodput_rank_info", _info(rank, of_rank), 1)
    families.add("goodput_rank_alive", of_rank, float(rank.alive))
    if rank.alive:
        age_seconds = max(0, now_ns - snapshot.last_ns) / 1e9
        families.add("goodput_rank_beat_age_seconds", of_rank, age_seconds)
        families.add("goodput_rank_phase_age_seconds", {**of_rank, "phase": snapshot.phase}, age_seconds)
    if rank.last_step is not None:
        families.add("goodput_rank_step", of_rank, rank.last_step.step)
    families.add("goodput_steps_total", of_rank, snapshot.steps_done)
    families.add("goodput_samples_total", of_rank, snapshot.samples)
    families.add("goodput_sdk_cost_seconds_total", of_rank, snapshot.cost_ns / 1e9)
    _add_sampling(families, snapshot.sampling, of_rank)
    for what, count in snapshot.drops.items():
        families.add("goodput_sdk_dropped_total", {**of_rank, "what": what}, count)
    _add_phases(families, snapshot, of_rank)
    _add_operations(families, rank, of_rank)
    _add_recent(families, rank, snapshot, of_rank, now_ns)
    if snapshot.loader:
        _add_loader(families, snapshot, of_rank)


def _add_sampling(families, sampling: dict[str, int], of_rank: dict[str, str]) -> None:
    """What automatic instrumentation counts; a rank without it has no such series."""
    if not any(sampling.values()):
        return
    families.add("goodput_sdk_phases_every", of_rank, sampling["phases_measured"])
    if sampling["budget_ppm"]:
        families.add("goodput_sdk_budget_ratio", of_rank, sampling["budget_ppm"] / 1e6)
    for series, what in (
        ("goodput_sdk_unmeasured_steps_total", "unmeasured_steps"),
        ("goodput_micro_batches_total", "micro_batches"),
        ("goodput_skipped_steps_total", "skipped_steps"),
        ("goodput_compilations_total", "compilations"),
    ):
        families.add(series, of_rank, sampling[what])


def add_histograms(families, rank: Rank, exemplar: tuple | None = None) -> None:
    """Add the step and phase histograms; `exemplar` is a step. Raises PageError for a page with impossible counts."""
    snapshot = rank.snapshot
    if snapshot is None:
        return
    of_rank = {"run": rank.identity.run, "rank": str(rank.identity.rank)}
    state = (snapshot.last_ns, snapshot.steps_done)
    if rank.histograms is None or rank.histograms[0] != state:
        rank.histograms = state, read_histograms(rank.reader, snapshot)
    for index, figures in rank.histograms[1].items():
        if index == 0:
            families.add_histogram("goodput_step_duration_seconds", of_rank, *figures, exemplar)
        else:
            labels = {**of_rank, "phase": snapshot.phases[index]}
            families.add_histogram("goodput_phase_duration_seconds", labels, *figures)


def read_histograms(reader: Reader, snapshot: Snapshot) -> dict[int, tuple[Buckets, float, NativeHistogram]]:
    """Buckets, sum in seconds and native histogram for each with a sample: 0 is step length, i phase index i.

    The page has no total of step lengths, so that sum is bin values times counts: within 0.05 % of the true
    one, and a sample of the overflow bin counts as its lower edge. A phase's sum is its total.
    """
    found = {}
    for slot in range(len(snapshot.phases)):
        blocks = reader.histogram_blocks(slot)
        binning = _PHASE if slot else _STEP
        classic, native = binning.counts(blocks)
        if not any(classic):
            continue
        if sum(classic) > COUNT_MAX:
            raise PageError("value", f"{reader.path}: histogram {slot} counts {sum(classic)} samples")
        sum_seconds = snapshot.host_totals[slot] / 1e9 if slot else sum_of_bins(blocks)
        buckets = list(zip(binning.bounds, accumulate(classic), strict=True))
        found[slot] = buckets, sum_seconds, NativeHistogram(native, sum_seconds)
    return found


def sum_of_bins(blocks: list[tuple[int, memoryview]]) -> float:
    """Seconds of the samples by the values of their bins; exact but for the last rounding."""
    units = 0
    for first_bin, block in blocks:
        octave = first_bin // OCTAVE
        if octave == BINS // OCTAVE:
            units += int(OVERFLOW_SECONDS * UNITS_PER_SECOND) * block[0]
            continue
        samples = weighted = 0
        for start, counts in filled_parts(block):
            samples += sum(counts)
            weighted += sum(map(mul, range(start, start + len(counts)), counts))
        # Within an octave a bin's value grows by 2**-24 s, doubled with each octave above the first two.
        units += (OCTAVE * samples + weighted) << (octave - 1) if octave else weighted
    return units / UNITS_PER_SECOND


def _add_phases(families, snapshot: Snapshot, of_rank: dict[str, str]) -> None:
    for index, phase in enumerate(snapshot.phases):
        for clock, totals in (("host", snapshot.host_totals), ("device", snapshot.device_totals)):
            if totals and totals[index]:
                labels = {**of_rank, "phase": phase, "clock": clock}
                families.add("goodput_phase_seconds_total", labels, totals[index] / 1e9)
        if snapshot.background_totals[index]:
            labels = {**of_rank, "phase": phase}
            seconds = snapshot.background_totals[index] / 1e9
            families.add("goodput_background_phase_seconds_total", labels, seconds)


def _add_operations(families, rank: Rank, of_rank: dict[str, str]) -> None:
    for row in rank.operations.rows:
        labels = {**of_rank, "group": row.group, "operation": row.operation}
        families.add("goodput_collective_calls_total", labels, row.calls)
        families.add("goodput_collective_bytes_total", labels, row.bytes)
        families.add("goodput_collective_exposed_seconds_total", labels, row.exposed_ns / 1e9)


def _add_recent(families, rank: Rank, snapshot: Snapshot, of_rank: dict[str, str], now_ns: int) -> None:
    for index, seconds in rank.recent.quantiles(now_ns).items():
        for q, value in zip(QUANTILES, seconds, strict=True):
            if index == 0:
                families.add("goodput_rank_step_seconds", {**of_rank, "q": q}, value)
            else:
                labels = {**of_rank, "phase": snapshot.phases[index], "q": q}
                families.add("goodput_rank_phase_seconds", labels, value)


def _add_loader(families, snapshot: Snapshot, of_rank: dict[str, str]) -> None:
    loader = snapshot.loader
    families.add("goodput_loader_batches_total", of_rank, loader["batches"])
    families.add("goodput_loader_ready_batches_total", of_rank, loader["ready"])
    families.add("goodput_loader_starved_batches_total", of_rank, loader["starved"])
    families.add("goodput_loader_iterators_total", of_rank, loader["starts"])
    families.add("goodput_loader_iterator_seconds_total", of_rank, loader["start_ns"] / 1e9)
    families.add("goodput_loader_workers", of_rank, loader["workers"])
    families.add("goodput_loader_workers_unmeasured_total", of_rank, loader["left_out"])
    for reason, ns in waits_of(loader).items():
        families.add("goodput_loader_wait_seconds_total", {**of_rank, "reason": reason}, ns / 1e9)
    shown = set()
    for worker in snapshot.workers:
        who = {**of_rank, "loader": str(worker["loader"]), "worker": str(worker["worker"])}
        if (who["loader"], who["worker"]) in shown:
            continue  # A page that names a worker twice must not cost the scrape.
        shown.add((who["loader"], who["worker"]))
        families.add("goodput_loader_worker_batches_total", who, worker["batches"])
        families.add("goodput_loader_worker_waited_seconds_total", who, worker["waited_ns"] / 1e9)
        for part, ns in parts_of(worker).items():
            families.add("goodput_loader_worker_seconds_total", {**who, "part": part}, ns / 1e9)


def _info(rank: Rank, of_rank: dict[str, str]) -> dict[str, str]:
    identity = rank.identity
    return {
        **of_rank,
        "attempt": str(identity.attempt),
        "host": identity.host,
        "device": identity.device,
        "gpu_uuid": identity.device_uuid,
        "group": identity.group,
        "stage": "" if identity.stage is None else str(identity.stage),
    }
