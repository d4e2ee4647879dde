"""What a GPU did, by the phase that its rank was in: activity, energy, and the time it was idle in compute.

In: a driver's samples as they come, each with the ranks of this node at that moment and their totals per phase. Out: per
GPU and phase the time that samples cover, in it the time each unit was active, and energy; per rank process what
its GPU did while it computed, for the account's state `launch`. All sums are whole ns and microjoules, and close: over
the phases they are what the samples said.

A sample covers the time since the one before it, and a rank's totals say to the ns how much of that lay in which
phase. In one phase alone the sample is that phase's. Where there were several, their parts are estimated: in
proportion to time times the activity that each phase is known for (rates.py learns it from all samples, in which the
phases are mixed differently). How much was mixed is counted.

Ranks that share a GPU share its time in equal parts. A GPU beyond TRACKS_MAX is left out, and of a GPU the phases
beyond PHASES_MAX, over all runs that it sees, are one: "other". It does not know pages, drivers or series (phase_series.py).

    join = PhaseJoin(); join.take(sample, ranks); join.tracks["GPU-…"].active["sm"]["backward"]    # ns
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import ge

from goodput_exporters.collectors.gpu_phases.activity_model import Rates
from goodput_exporters.gpu.sample import Gpu, Sample
from goodput_exporters.system.ranks import RankKey, RankPhases

UNITS = ("engine", "utilization", "sm", "tensor", "dram")
# What says whether anything ran at all; the first that a driver knows.
BUSY = ("engine", "utilization")
NO_RANK, ENERGY, OTHER = "idle", "energy", "other"
# What one GPU's rates cost grows with the third power of its phases: 64 take about 20 ms each ten seconds.
TRACKS_MAX, PHASES_MAX = 512, 64
# A counter or a power that says more is not believed; as much again for a counter that moves in steps.
WATTS_MAX = 1e6
# A longer time between two samples is not what the later one says.
COVERED_NS_MAX = 15 * 10**9
LEAST = 1e-3  # of the mean in a sample: no phase is known to do nothing at all
MIXED_BELOW = 0.99  # share of the longest phase in a sample
# Of two drivers that know a GPU one is followed, until it has been silent for so long.
SILENT_NS = 5 * 10**9
# A phase that computes for longer has hung; the account's own least is the same.
WAITING_NS_MAX = 60 * 10**9


@dataclass
class Hardware:
    """What the GPU of one rank process did, cumulative.

    What samples say of compute waits until the running phase has ended: a hang inside of it is no compute, and its
    idle time would make `launch` of the work before it.
    """

    compute_ns: int = 0
    idle_ns: int = 0
    energy_uj: int = 0
    boundary_ns: int | None = None
    waiting: tuple[int, int] = (0, 0)  # compute and idle

    def add(self, boundary_ns: int | None, compute_ns: int, idle_ns: int) -> None:
        """A sample's part, with the beginning of the phase that runs."""
        if boundary_ns is None or boundary_ns != self.boundary_ns:
            self._settle()
        self.boundary_ns = boundary_ns
        self.waiting = self.waiting[0] + compute_ns, self.waiting[1] + idle_ns
        if boundary_ns is None:
            self._settle()

    def _settle(self) -> None:
        if self.waiting[0] <= WAITING_NS_MAX:
            self.compute_ns += self.waiting[0]
            self.idle_ns += self.waiting[1]
        self.waiting = 0, 0

    def figures(self) -> dict[str, int]:
        """As schema.Live carries them."""
        named = {"compute_ns": self.compute_ns, "idle_ns": self.idle_ns, "energy_mj": self.energy_uj // 1000}
        return {name: value for name, value in named.items() if value}


@dataclass
class Track:
    """One GPU. Sums are in ns, energy in microjoules, by phase."""

    driver: str
    monotonic_ns: int
    totals: dict[RankKey, tuple[int, ...]] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()
    joules: float | None = None
    limit_watts: float | None = None
    covered: dict[str, int] = field(default_factory=dict)
    active: dict[str, dict[str, int]] = field(default_factory=dict)
    energy: dict[str, int] = field(default_factory=dict)
    mixed_ns: int = 0
    rates: Rates = field(default_factory=Rates)


class PhaseJoin:
    """All GPUs of a node, and the rank processes that were seen on them."""

    def __init__(self):
        self.tracks: dict[str, Track] = {}
        self.hardware: dict[RankKey, Hardware] = {}

    def take(self, sample: Sample, ranks: list[RankPhases]) -> None:
        """Take a sample that was just made, with the ranks as they are now."""
        for gpu in sample.gpus:
            track = self.tracks.get(gpu.uuid)
            if track is None or gpu.lost:
                if not gpu.lost and len(self.tracks) < TRACKS_MAX:
                    self.tracks[gpu.uuid] = self._begin(Track(sample.driver, sample.monotonic_ns), gpu, ranks)
                continue
            spent_ns = sample.monotonic_ns - track.monotonic_ns
            if (sample.driver != track.driver and spent_ns < SILENT_NS) or spent_ns == 0:
                continue
            if gpu.pids is not None:
                track.pids = frozenset(gpu.pids)
            # One that went back was preceded by one with a time that was wrong.
            if 0 < spent_ns <= COVERED_NS_MAX and sample.driver == track.driver:
                self._credit(track, gpu, spent_ns, self._on(track, gpu, ranks))
            track.driver, track.monotonic_ns = sample.driver, sample.monotonic_ns
            self._begin(track, gpu, ranks)

    def forget(self, key: RankKey) -> None:
        """A rank process is over and was reported."""
        self.hardware.pop(key, None)

    def _begin(self, track: Track, gpu: Gpu, ranks: list[RankPhases]) -> Track:
        if gpu.pids is not None:
            track.pids = frozenset(gpu.pids)
        track.joules = gpu.readings.get("energy")
        limit = gpu.readings.get("power_limit", track.limit_watts)
        track.limit_watts = limit if limit is not None and 0 < limit <= WATTS_MAX else None
        track.totals = {rank.key: rank.totals_ns for rank in self._on(track, gpu, ranks)}
        return track

    def _on(self, track: Track, gpu: Gpu, ranks: list[RankPhases]) -> list[RankPhases]:
        """The ranks that compute on this GPU: by the uuid that they say, else by their pid."""
        return [
            rank for rank in ranks if (rank.gpu_uuid == gpu.uuid if rank.gpu_uuid else rank.pid in track.pids)
        ]

    def _credit(self, track: Track, gpu: Gpu, spent_ns: int, ranks: list[RankPhases]) -> None:
        known = [rank for rank in ranks if rank.key in track.totals]
        if ranks and not known:
            return  # All of them came in between: what part of the time was theirs is not known.
        places = set(track.covered)
        own = {
            rank.key: _bounded(places, _phases_of(rank, track.totals[rank.key], spent_ns)) for rank in known
        }
        pooled: dict[str, int] = {}
        for part in own.values():
            for phase, ns in part.items():
                pooled[phase] = pooled.get(phase, 0) + ns
        names = list(pooled) or [NO_RANK]
        shares = dict(zip(names, portion(spent_ns, list(pooled.values()) or [1]), strict=True))
        shares = {phase: ns for phase, ns in shares.items() if ns}
        _add(track.covered, shares)
        if max(shares.values()) < MIXED_BELOW * spent_ns:
            track.mixed_ns += spent_ns
        amounts = {unit: round(ratio * spent_ns) for unit, ratio in _activity(gpu).items()}
        energy = self._energy(track, gpu, spent_ns)
        if energy is not None:
            amounts[ENERGY] = energy
        means = {unit: amount / spent_ns for unit, amount in amounts.items()}
        track.rates.learn({phase: ns / spent_ns for phase, ns in shares.items()}, means, spent_ns)
        limit = track.limit_watts
        credited = {
            unit: _split(track.rates, unit, amount, shares, limit) for unit, amount in amounts.items()
        }
        for unit, parts in credited.items():
            _add(track.energy if unit == ENERGY else track.active.setdefault(unit, {}), parts)
        busy = next((credited[unit] for unit in BUSY if unit in credited), None)
        for rank in known:
            self._tell(rank, own[rank.key], shares, busy, (energy or 0) // len(known))

    def _energy(self, track: Track, gpu: Gpu, spent_ns: int) -> int | None:
        """Microjoules since the last sample: by the GPU's counter, else by its power now."""
        joules, power = gpu.readings.get("energy"), gpu.readings.get("power")
        if joules is not None and track.joules is not None:
            grown = joules - track.joules
            if 0 <= grown <= WATTS_MAX * (spent_ns / 1e9 + 1):
                return round(grown * 1e6)
        return None if power is None or not 0 <= power <= WATTS_MAX else round(power * spent_ns / 1e3)

    def _tell(
        self, rank: RankPhases, own: dict[str, int], shares: dict, busy: dict | None, energy: int
    ) -> None:
        hardware = self.hardware.setdefault(rank.key, Hardware())
        hardware.energy_uj += energy
        if busy is None:
            return
        compute = {phase: ns for phase, ns in own.items() if phase in rank.compute and phase in shares}
        idle_ns = sum(ns * (shares[phase] - busy[phase]) // shares[phase] for phase, ns in compute.items())
        hardware.add(rank.boundary_ns, sum(compute.values()), idle_ns)


def _activity(gpu: Gpu) -> dict[str, float]:
    found = {unit: gpu.readings.get(f"activity/{unit}") for unit in UNITS}
    if found["utilization"] == 1 and found["engine"] == 0:
        # Counters that a profiler holds read 0.
        found = {"utilization": 1.0}
    return {unit: min(max(ratio, 0.0), 1.0) for unit, ratio in found.items() if ratio is not None}


def _split(
    rates: Rates, unit: str, amount: int, shares: dict[str, int], limit_watts: float | None = None
) -> dict[str, int]:
    """`amount` over the phases of `shares`, by time and by what each is known for; to none more than it can be."""
    if len(shares) == 1:
        return dict.fromkeys(shares, amount)
    least = LEAST * amount / sum(shares.values())
    known = rates.of_each(unit, shares)
    weights = [
        ns * (rate if rate > least else least) for ns, rate in zip(shares.values(), known, strict=True)
    ]
    caps = list(shares.values())
    if unit == ENERGY:
        caps = [int(ns * limit_watts / 1e3) for ns in caps] if limit_watts else None
        # A limit may be passed for a moment.
        caps = caps if caps is not None and sum(caps) >= amount else None
    return dict(zip(shares, portion(amount, weights, caps), strict=True))


def _phases_of(rank: RankPhases, before: tuple[int, ...], spent_ns: int) -> dict[str, int]:
    """How `spent_ns` lay in the rank's phases, by what its totals have grown; they were read a moment later."""
    before = before + (0,) * (len(rank.totals_ns) - len(before))
    grown = [max(now - then, 0) for now, then in zip(rank.totals_ns, before, strict=False)]
    parts = portion(spent_ns, grown if any(grown) else [1] + [0] * (len(grown) - 1))
    return {phase: ns for phase, ns in zip(rank.phases, parts, strict=False) if ns}


def _bounded(places: set[str], parts: dict[str, int]) -> dict[str, int]:
    """The same with each phase that has no place in OTHER; those that find one take it."""
    bounded: dict[str, int] = {}
    for phase, ns in parts.items():
        if phase not in places and len(places) >= PHASES_MAX - 1:
            phase = OTHER
        places.add(phase)
        bounded[phase] = bounded.get(phase, 0) + ns
    return bounded


def _add(sums: dict[str, int], parts: dict[str, int]) -> None:
    for phase, amount in parts.items():
        sums[phase] = sums.get(phase, 0) + amount


def portion(amount: int, weights: list[float], caps: list[int] | None = None) -> list[int]:
    """`amount` in whole parts by weight, each at most its cap; they sum to it, or to all caps if those are less.

    What is above a cap goes to the others by their weights.
    """
    parts = _portion_below_caps(amount, weights, caps)
    if parts is not None:
        return parts
    parts = [0] * len(weights)
    limits = caps or [amount] * len(weights)
    left, open_to = min(amount, sum(limits)), [i for i, weight in enumerate(weights) if weight > 0]
    while left > 0:
        if not open_to:
            open_to = [i for i, part in enumerate(parts) if part < limits[i]]
            weights = [1.0] * len(weights)
        whole = sum(weights[i] for i in open_to)
        full = [i for i in open_to if left * weights[i] / whole >= limits[i] - parts[i]]
        if full:
            for i in full:
                left -= limits[i] - parts[i]
                parts[i] = limits[i]
            open_to = [i for i in open_to if i not in full]
            if left < 0:  # Rounding: what was given beyond is taken back.
                parts[full[-1]] += left
                left = 0
            continue
        given = [int(left * weights[i] / whole) for i in open_to]
        for i, value in zip(open_to, given, strict=True):
            parts[i] += value
        rest = left - sum(given)
        at = max(open_to, key=lambda i: (weights[i], limits[i] - parts[i]))
        room = limits[at] - parts[at]
        parts[at] += min(rest, room)
        left = rest - min(rest, room)
        if left:
            open_to = [i for i, part in enumerate(parts) if part < limits[i]]
    return parts


def _portion_below_caps(amount: int, weights: list[float], caps: list[int] | None) -> list[int] | None:
    """`portion` where nobody comes to a cap and one has the largest weight, which is nearly always; else None."""
    whole = sum(weights)
    if amount <= 0 or not whole > 0 or min(weights) < 0:
        return None
    largest = max(weights)
    at = weights.index(largest)
    if caps is not None and weights.count(largest) > 1:
        return None
    given = [amount * weight / whole for weight in weights]
    parts = [int(part) for part in given]
    parts[at] += amount - sum(parts)
    if caps is not None and (parts[at] > caps[at] or any(map(ge, given, caps))):
        return None
    return parts
