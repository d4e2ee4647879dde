"""The series of one rank process, from its latest snapshot and, at a scrape, its histograms.

In: a Rank. Out: values in a Families. Ages are given only for a rank that lives: a dead one is in no phase.
Bins are read at the scrape, sums come from the phase totals, so both only grow; the histograms of a rank that
has not moved since the last scrape are not read again. Cost: about 0.1 ms for each histogram that changed.

It does not know which of several processes of a rank to show (collectors/ranks.py).
"""

from __future__ import annotations

from goodput.histogram import LATENCY_BOUNDS, SLOTS, Histogram, value_of
from goodput.page import PageError
from goodput.page_reader import Snapshot
from goodput_exporters.rank import Rank

# The page says what the host clock measured; the device clock has series of its own when it is there.
CLOCK = "host"
_LE = [*(repr(bound) for bound in LATENCY_BOUNDS), "+Inf"]

Buckets = list[tuple[str, int]]


def add_rank(families, rank: Rank, now_ns: int) -> None:
    """Add every series of this rank but its histograms. `now_ns` is monotonic."""
    snapshot = rank.snapshot
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
    for what, count in snapshot.drops.items():
        families.add("goodput_sdk_dropped_total", {**of_rank, "what": what}, count)
    _add_phases(families, snapshot, of_rank)


def add_histograms(families, rank: Rank) -> None:
    """Add the step and phase histograms. Raises PageError where the page holds impossible counts."""
    of_rank = {"run": rank.identity.run, "rank": str(rank.identity.rank)}
    snapshot = rank.snapshot
    state = (snapshot.last_ns, snapshot.steps_done)
    if rank.histograms is None or rank.histograms[0] != state:
        rank.histograms = state, read_histograms(rank)
    for index, (buckets, sum_seconds) in rank.histograms[1].items():
        if index == 0:
            families.add_histogram("goodput_step_duration_seconds", of_rank, buckets, sum_seconds)
        else:
            labels = {**of_rank, "phase": snapshot.phases[index]}
            families.add_histogram("goodput_phase_duration_seconds", labels, buckets, sum_seconds)


def read_histograms(rank: Rank) -> dict[int, tuple[Buckets, float]]:
    """Buckets and sum in seconds for each histogram with a sample: 0 is step length, i phase index i.

    The page has no total of step lengths, so that sum is bin values times counts: within 0.05 % of the true
    one, and a sample of the overflow bin counts as its lower edge. A phase's sum is its total.
    """
    found = {}
    for slot in range(len(rank.snapshot.phases)):
        histogram = _histogram(rank, slot)
        if histogram.count:
            counts = [count for _, count in histogram.to_buckets(LATENCY_BOUNDS)]
            sum_seconds = rank.snapshot.totals[slot] / 1e9 if slot else _sum_of_bins(histogram)
            found[slot] = list(zip(_LE, counts, strict=True)), sum_seconds
    return found


def _histogram(rank: Rank, slot: int) -> Histogram:
    histogram = Histogram()
    for first_bin, counts in rank.reader.histogram_blocks(slot):
        try:
            # The page's last block is longer than the bins there are.
            histogram.add_dense(first_bin, counts[: SLOTS - first_bin])
        except ValueError as error:
            raise PageError("value", f"{rank.reader.path}: histogram {slot}: {error}") from None
    return histogram


def _sum_of_bins(histogram: Histogram) -> float:
    return sum(min(value_of(bin), 65520.0) * count for bin, count in histogram.to_pairs())


def _add_phases(families, snapshot: Snapshot, of_rank: dict[str, str]) -> None:
    for index, phase in enumerate(snapshot.phases):
        if snapshot.totals[index]:
            labels = {**of_rank, "phase": phase, "clock": CLOCK}
            families.add("goodput_phase_seconds_total", labels, snapshot.totals[index] / 1e9)
        if snapshot.background_totals[index]:
            labels = {**of_rank, "phase": phase}
            seconds = snapshot.background_totals[index] / 1e9
            families.add("goodput_background_phase_seconds_total", labels, seconds)


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
