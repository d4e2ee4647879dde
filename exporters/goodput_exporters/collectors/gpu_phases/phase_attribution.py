"""Attributes each GPU's activity, energy and time to the phases of the ranks that use it.

A sample covers the time since the one before it, and a rank's totals give the time in each phase to the nanosecond.
A sample within one phase is credited to that phase. For one that spans several, the parts are
estimated: in proportion to time multiplied by the activity that activity_model.py has learned for each phase. How
much time was estimated is counted (`mixed_ns`). All sums are integers and close: over the phases they equal the
samples. Ranks that share a GPU share its time in equal parts.

    attribution = PhaseAttribution(); attribution.add_sample(sample, ranks)
    attribution.gpus["GPU-…"].active_ns["sm"]["backward"]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import lt

from goodput_exporters.collectors.gpu_phases.activity_model import ActivityModel
from goodput_exporters.gpu.sample import Gpu, Sample
from goodput_exporters.system.ranks import RankKey, RankPhases

UNITS = ("engine", "utilization", "sm", "tensor", "dram")
_UNIT_OF = {f"activity/{unit}": unit for unit in UNITS}  # by key of the reading
# Units that show whether anything ran at all; the first that a driver measures is used.
BUSY_UNITS = ("engine", "utilization")
# For people: the driver's own coarse measure, as tools show it, else what is closest.
NOW_UNITS = ("utilization", "engine", "sm")
NO_RANK, ENERGY, OTHER = "idle", "energy", "other"
# GPUs beyond the first bound are ignored; a GPU's phases beyond the second are counted as "other". The cost of the
# model grows with the cube of the phases: 64 take about 20 ms every ten seconds.
GPUS_MAX, PHASES_MAX = 512, 64
# Power and energy increases above this are rejected.
WATTS_MAX = 1e6
# A sample is not taken to cover a longer time than this.
COVERED_NS_MAX = 15 * 10**9
# Lower bound of a phase's learned activity, as a share of the sample's mean: no phase is known to do nothing.
ACTIVITY_SHARE_MIN = 1e-3
# A sample is mixed where its longest phase covers less than this share.
MIXED_BELOW = 0.99
# Of two drivers that sample a GPU, one is used until it has been silent for this long.
SILENT_NS = 5 * 10**9
# A compute phase that runs longer hangs; the account uses the same bound.
PENDING_NS_MAX = 60 * 10**9


@dataclass
class RankGpuTotals:
    """Cumulative GPU totals of one rank process.

    Compute time stays pending until the running phase has ended: a hang in it is not compute, and its idle time
    would turn the work before it into `launch`.
    """

    compute_ns: int = 0
    idle_ns: int = 0
    energy_uj: int = 0
    boundary_ns: int | None = None
    pending_ns: tuple[int, int] = (0, 0)  # compute, idle

    def add(self, boundary_ns: int | None, compute_ns: int, idle_ns: int) -> None:
        """Add a sample's part. `boundary_ns` is the start of the running phase."""
        if boundary_ns is None or boundary_ns != self.boundary_ns:
            self._settle()
        self.boundary_ns = boundary_ns
        self.pending_ns = self.pending_ns[0] + compute_ns, self.pending_ns[1] + idle_ns
        if boundary_ns is None:
            self._settle()

    def _settle(self) -> None:
        if self.pending_ns[0] <= PENDING_NS_MAX:
            self.compute_ns += self.pending_ns[0]
            self.idle_ns += self.pending_ns[1]
        self.pending_ns = 0, 0

    def as_live_fields(self) -> dict[str, int]:
        """The nonzero totals, named as in schema.Live."""
        fields = {"compute_ns": self.compute_ns, "idle_ns": self.idle_ns, "energy_mj": self.energy_uj // 1000}
        return {name: value for name, value in fields.items() if value}


@dataclass
class GpuTotals:
    """One GPU: its last sample, and its cumulative sums by phase."""

    driver: str
    sampled_ns: int
    rank_totals_ns: dict[RankKey, tuple[int, ...]] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()
    joules: float | None = None
    limit_watts: float | None = None
    busy: float | None = None  # share of the last sample in which a kernel ran
    watts: float | None = None
    covered_ns: dict[str, int] = field(default_factory=dict)
    active_ns: dict[str, dict[str, int]] = field(default_factory=dict)
    energy_uj: dict[str, int] = field(default_factory=dict)
    mixed_ns: int = 0
    model: ActivityModel = field(default_factory=ActivityModel)

    def remember(self, gpu: Gpu, activity: dict[str, float], users: list[RankPhases]) -> None:
        """Keep what the next sample is compared with."""
        if gpu.pids is not None:
            self.pids = frozenset(gpu.pids)
        self.joules = gpu.readings.get("energy")
        self.watts = gpu.readings.get("power")
        self.busy = next((activity[unit] for unit in NOW_UNITS if unit in activity), None)
        limit = gpu.readings.get("power_limit", self.limit_watts)
        self.limit_watts = limit if limit is not None and 0 < limit <= WATTS_MAX else None
        self.rank_totals_ns = {rank.key: rank.totals_ns for rank in users}

    def users(self, gpu: Gpu, ranks: list[RankPhases]) -> list[RankPhases]:
        """The ranks on this GPU: by the UUID that they declare, else by their pid.

        A page may declare another user's GPU: where the driver sees a rank on it, others count only if it sees them too.
        """
        seen = [rank for rank in ranks if rank.pid and rank.pid in self.pids]
        declared = [rank for rank in ranks if rank.gpu_uuid == gpu.uuid]
        if any(rank in seen for rank in declared):
            declared = [rank for rank in declared if rank in seen]
        return declared + [rank for rank in seen if not rank.gpu_uuid]

    def energy_since_last(self, gpu: Gpu, spent_ns: int) -> int | None:
        """Microjoules since the last sample: from the GPU's counter, else from its present power."""
        joules, watts = gpu.readings.get("energy"), gpu.readings.get("power")
        grown = -1.0 if joules is None or self.joules is None else joules - self.joules
        # A counter that moves in steps may run ahead by one second's worth.
        if 0 <= grown <= WATTS_MAX * (spent_ns / 1e9 + 1):
            return round(grown * 1e6)
        return None if watts is None or not 0 <= watts <= WATTS_MAX else round(watts * spent_ns / 1e3)

    def split(self, unit: str, amount: int, times_ns: list[int], rows: list[int]) -> list[int]:
        """`amount` over phases by time and learned activity; no phase gets more than its time or power allows.

        `rows` are the phases' in the model.
        """
        if len(times_ns) == 1:
            return [amount]
        least = ACTIVITY_SHARE_MIN * amount / sum(times_ns)
        rates = self.model.rates(unit, rows)
        weights = [ns * (rate if rate > least else least) for ns, rate in zip(times_ns, rates, strict=True)]
        caps: list[int] | None = times_ns
        if unit == ENERGY:
            caps = [int(ns * self.limit_watts / 1e3) for ns in times_ns] if self.limit_watts else None
            # The power limit may be exceeded for a moment.
            caps = caps if caps is not None and sum(caps) >= amount else None
        return apportion(amount, weights, caps)


class PhaseAttribution:
    """All GPUs of a node, and the rank processes that were seen on them."""

    def __init__(self):
        self.gpus: dict[str, GpuTotals] = {}
        self.ranks: dict[RankKey, RankGpuTotals] = {}

    def add_sample(self, sample: Sample, ranks: list[RankPhases]) -> None:
        """Credit a sample that was just taken, with the ranks as they are now."""
        for gpu in sample.gpus:
            totals = self.gpus.get(gpu.uuid)
            if totals is None or gpu.lost:
                if not gpu.lost and len(self.gpus) < GPUS_MAX:
                    self.gpus[gpu.uuid] = totals = GpuTotals(sample.driver, sample.monotonic_ns)
                    totals.pids = frozenset(gpu.pids or ())
                    totals.remember(gpu, _activity(gpu), totals.users(gpu, ranks))
                continue
            spent_ns = sample.monotonic_ns - totals.sampled_ns
            if (sample.driver != totals.driver and spent_ns < SILENT_NS) or spent_ns == 0:
                continue
            if gpu.pids is not None:
                totals.pids = frozenset(gpu.pids)
            activity, users = _activity(gpu), totals.users(gpu, ranks)
            # A negative time means that the last sample's time was wrong.
            if 0 < spent_ns <= COVERED_NS_MAX and sample.driver == totals.driver:
                self._credit(totals, gpu, activity, spent_ns, users)
            totals.driver, totals.sampled_ns = sample.driver, sample.monotonic_ns
            totals.remember(gpu, activity, users)

    def now_of(self, key: RankKey, monotonic_ns: int) -> dict[str, int]:
        """Of the GPUs that a rank used at their last sample: their mean activity and the sum of their power, as in schema.Live."""
        own = [gpu for gpu in self.gpus.values() if key in gpu.rank_totals_ns]
        own = [gpu for gpu in own if monotonic_ns - gpu.sampled_ns <= COVERED_NS_MAX]
        busy = [gpu.busy for gpu in own if gpu.busy is not None]
        watts = [gpu.watts for gpu in own if gpu.watts is not None and 0 <= gpu.watts <= WATTS_MAX]
        found = {"busy_ppm": round(1e6 * sum(busy) / len(busy))} if busy else {}
        return found | ({"power_mw": round(1e3 * sum(watts))} if watts else {})

    def _credit(
        self,
        totals: GpuTotals,
        gpu: Gpu,
        activity: dict[str, float],
        spent_ns: int,
        ranks: list[RankPhases],
    ) -> None:
        known = [rank for rank in ranks if rank.key in totals.rank_totals_ns]
        if ranks and not known:
            return  # All of them started in between: which part of the time was theirs is unknown.
        names = set(totals.covered_ns)
        own_ns = {
            rank.key: _bounded(names, _time_by_phase(rank, totals.rank_totals_ns[rank.key], spent_ns))
            for rank in known
        }
        shares_ns = _shared(spent_ns, own_ns.values())
        times_ns = list(shares_ns.values())
        _add(totals.covered_ns, shares_ns, times_ns)
        if max(times_ns) < MIXED_BELOW * spent_ns:
            totals.mixed_ns += spent_ns
        amounts = {unit: round(ratio * spent_ns) for unit, ratio in activity.items()}
        energy_uj = totals.energy_since_last(gpu, spent_ns)
        if energy_uj is not None:
            amounts[ENERGY] = energy_uj
        means = {unit: amount / spent_ns for unit, amount in amounts.items()}
        rows = totals.model.learn(shares_ns, [ns / spent_ns for ns in times_ns], means, spent_ns)
        credited = {unit: totals.split(unit, amount, times_ns, rows) for unit, amount in amounts.items()}
        for unit, parts in credited.items():
            sums = totals.energy_uj if unit == ENERGY else totals.active_ns.setdefault(unit, {})
            _add(sums, shares_ns, parts)
        busy = next((credited[unit] for unit in BUSY_UNITS if unit in credited), None)
        busy_ns = None if busy is None else dict(zip(shares_ns, busy, strict=True))
        for rank in known:
            energy_share_uj = (energy_uj or 0) // len(known)
            self._credit_rank(rank, own_ns[rank.key], shares_ns, busy_ns, energy_share_uj)

    def _credit_rank(
        self,
        rank: RankPhases,
        own_ns: dict[str, int],
        shares_ns: dict[str, int],
        busy_ns: dict[str, int] | None,
        energy_uj: int,
    ) -> None:
        totals = self.ranks.setdefault(rank.key, RankGpuTotals())
        totals.energy_uj += energy_uj
        if busy_ns is None:
            return
        compute = {phase: ns for phase, ns in own_ns.items() if phase in rank.compute and phase in shares_ns}
        idle_ns = sum(
            ns * (shares_ns[phase] - busy_ns[phase]) // shares_ns[phase] for phase, ns in compute.items()
        )
        totals.add(rank.boundary_ns, sum(compute.values()), idle_ns)


def _activity(gpu: Gpu) -> dict[str, float]:
    readings = gpu.readings
    found = {unit: readings[key] for key, unit in _UNIT_OF.items() if key in readings}
    if found.get("utilization") == 1 and found.get("engine") == 0:
        # Profiling counters that another profiler holds read 0.
        found = {"utilization": 1.0}
    return {unit: min(max(ratio, 0.0), 1.0) for unit, ratio in found.items()}


def _time_by_phase(rank: RankPhases, before: tuple[int, ...], spent_ns: int) -> dict[str, int]:
    """`spent_ns` by phase, in proportion to the growth of the rank's totals, which were read a moment later."""
    now = rank.totals_ns
    # Of phases that were defined since, there is no total before.
    grown = [
        (at, total - then)
        for at, (total, then) in enumerate(zip_longest(now, before[: len(now)], fillvalue=0))
        if total > then
    ] or [(0, 1)]
    parts = apportion(spent_ns, [growth for _, growth in grown])
    width = len(rank.phases)
    return {rank.phases[at]: ns for (at, _), ns in zip(grown, parts, strict=True) if ns and at < width}


def _bounded(names: set[str], parts: dict[str, int]) -> dict[str, int]:
    """`parts` with the phases beyond PHASES_MAX as OTHER; adds the others to `names`."""
    if names.issuperset(parts):
        return parts
    bounded: dict[str, int] = {}
    for phase, ns in parts.items():
        if phase not in names and len(names) >= PHASES_MAX - 1:
            phase = OTHER
        names.add(phase)
        bounded[phase] = bounded.get(phase, 0) + ns
    return bounded


def _shared(spent_ns: int, parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """`spent_ns` by phase, of ranks that have their time in `parts`; without a rank it is idle."""
    pooled: dict[str, int] = {}
    for part in parts:
        _add(pooled, part, part.values())
    if sum(pooled.values()) == spent_ns:
        return pooled
    shares = apportion(spent_ns, list(pooled.values()) or [1])
    return {phase: ns for phase, ns in zip(pooled or [NO_RANK], shares, strict=True) if ns}


def _add(sums: dict[str, int], phases: Iterable[str], amounts: Iterable[int]) -> None:
    for phase, amount in zip(phases, amounts, strict=True):
        sums[phase] = sums.get(phase, 0) + amount


def apportion(amount: int, weights: Sequence[float], caps: list[int] | None = None) -> list[int]:
    """Split `amount` into integers in proportion to `weights`, each at most its cap.

    They sum to `amount`, or to all caps if those are less. What exceeds a cap goes to the others by weight, and to
    those of weight 0 last. Rounding goes to the largest weight.
    """
    whole = sum(weights)
    if amount > 0 and whole > 0 and min(weights) >= 0:
        # No cap is reached, as nearly always.
        parts = [int(amount * weight / whole) for weight in weights]
        left, largest = amount - sum(parts), weights.index(max(weights))
        if 0 <= left <= len(parts):
            parts[largest] += left
            if caps is None or all(map(lt, parts, caps)):
                return parts
    limits = caps or [amount] * len(weights)
    parts = [0] * len(weights)
    left = min(amount, sum(limits))
    open_at = [at for at, weight in enumerate(weights) if weight > 0]
    while left > 0:
        if not open_at:
            open_at = [at for at, part in enumerate(parts) if part < limits[at]]
            weights = [1.0] * len(weights)
        whole = sum(weights[at] for at in open_at)
        total = left
        for at in open_at:
            given = min(int(total * weights[at] / whole), limits[at] - parts[at], left)
            parts[at] += given
            left -= given
        open_at = [at for at in open_at if parts[at] < limits[at]]
        if open_at:
            largest = max(open_at, key=weights.__getitem__)
            given = min(left, limits[largest] - parts[largest], len(weights))
            parts[largest] += given
            left -= given
    return parts
