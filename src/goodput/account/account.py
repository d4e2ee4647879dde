"""The account of a run: every rank's time while it was expected, each nanosecond in one state.

The states of a rank sum to its wall time exactly, and ratios are computed from sums. `compute` takes a run whose rows
are at hand; `Engine` takes rows one by one. Cost: about 10 us per step and rank.

    account = compute(run, now_ns=time.time_ns()); account.ratio("goodput")
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import add

from goodput.account.attempts import Attempt, Row, Run
from goodput.account.collectives.arrival_skew import LeastWaits
from goodput.account.collectives.operation_sums import (
    Exposed,
    Operations,
    by_operation,
    comparing,
    exposed_of,
)
from goodput.account.collectives.slow_issue import SlowIssue, slow_issue
from goodput.account.collectives.slow_link import SlowLink
from goodput.account.document_types import Gain, StepLines
from goodput.account.facts import Facts, Key, RankRange, gaps, gather
from goodput.account.fold import PRODUCTIVE, Fold, PaidOnce
from goodput.account.hardware import energy_mj, is_cut, states_of
from goodput.account.loader_summary import LoaderSummary, summarize_loaders
from goodput.account.peaks import peak
from goodput.account.sampled_stacks import sampled_ranks
from goodput.account.stall_threshold import PlannedLimits, StepLengths
from goodput.account.states import BEGINNING, INDEX, NOTHING, vector
from goodput.account.straggler import Groups, Straggler, sum_stragglers
from goodput.defaults import ESTIMATED_LOADER, ESTIMATED_OPTIMIZER, STALL_SECONDS
from goodput.slices import AT_A_TIME, Slices, result_of
from goodput.wire.sampled_stacks import SampledStacks

_DOWN, _UNOBSERVED, _STARTUP = INDEX["down"], INDEX["unobserved"], INDEX["startup"]

_DECLARED_KEPT = (
    *("host", "role", "worker", "dtype", "stage", "devices", "microbatches", "flops_unknown"),
    *("gpu_hour_cost", "gpu_power_watts", "ideal_samples_per_second", "reached_flops_per_second"),
    *("reached_bus_bytes_per_second", "h2d_bytes_per_second", "reached_h2d_bytes_per_second"),
    "core_wait_ratio",
)
# Ends of an attempt that are no failure; being killed is one.
NO_FAILURE = ("finished", "resumed", "cancelled")
FACTORS = ("availability", "step_efficiency", "goodput", "compute_efficiency", "mfu", "hfu")


@dataclass(slots=True)
class RankAccount:
    """One expected rank: its sums and declared fields. `states` is in ns of wall time, not yet weighed by `devices`.

    Where `count` is more than one it stands for so many ranks from `rank` on, each with these sums: none reported.
    """

    rank: int
    wall_ns: int = 0
    host: str = ""
    role: str = ""
    worker: str = ""
    stage: int | None = None
    devices: int = 1
    states: list[int] = field(default_factory=vector)
    kept_steps: int = 0
    lost_steps: int = 0
    kept_ns: int = 0
    saved_ns: int = 0  # spent in saving checkpoints, kept or lost
    device_ns: int = 0  # length of steps that the device clock divided into phases, kept or lost
    kept_samples: float = 0.0
    flops: float | None = None
    hardware_flops: float | None = None
    peak: float | None = None
    reached_flops_per_second: float | None = None
    reached_bus_bytes_per_second: float | None = None
    h2d_bytes_per_second: float | None = None
    reached_h2d_bytes_per_second: float | None = None
    core_wait_ratio: float | None = None
    ideal_samples_per_second: float | None = None
    best_samples_per_second: float | None = None
    microbatches: int | None = None
    dtype: str = ""
    flops_unknown: str = ""
    gpu_hour_cost: float | None = None
    gpu_power_watts: float | None = None
    observed: bool = False
    guessed_loader: bool = False  # part of `loader` is estimated: no loader was known
    guessed_update: bool = False  # part of `productive` is estimated: there was no optimizer
    sampled: bool = False  # samples say how much of its compute the device was idle
    energy_mj: int = 0  # measured, by all its devices
    metered: list[int] = field(
        default_factory=lambda: NOTHING
    )  # the part of `states` that this energy covers
    exposed: list[Exposed] = field(default_factory=list)  # communication of each attempt, by operation
    count: int = 1

    @property
    def all_devices(self) -> int:
        """The devices of all ranks that it stands for."""
        return self.devices * self.count

    def role_name(self) -> str:
        """The declared role, else whether it trains or generates, as far as that is seen."""
        if self.role or not self.observed:
            return self.role or "unobserved"
        makes_steps = self.kept_steps + self.lost_steps > 0
        return "generator" if self.states[INDEX["rollout"]] and not makes_steps else "trainer"


def sum_gpu_ns(ranks: Iterable[RankAccount]) -> list[int]:
    """GPU-ns per state: the ranks' sums, weighed by their devices."""
    by_devices: dict[int, list[list[int]]] = {}
    for rank in ranks:
        by_devices.setdefault(rank.devices * rank.count, []).append(rank.states)
    total = vector()
    for devices, states in by_devices.items():
        for i, ns in enumerate(map(sum, zip(*states, strict=True))):
            total[i] += ns * devices
    return total


@dataclass
class Restart:
    """A start of the run after the first, with what it cost. Times in unix ns, sums in GPU-ns."""

    attempt: int
    time_ns: int
    resume_step: int | None
    devices: int = 0
    down_gpu_ns: int = 0
    lost_steps: int = 0
    lost_gpu_ns: int = 0
    startup_gpu_ns: int = 0  # startup, restore and compile of this attempt

    def gpu_ns(self) -> int:
        return self.down_gpu_ns + self.lost_gpu_ns + self.startup_gpu_ns


@dataclass(frozen=True)
class ReplayedGains:
    """What it would bring if a state were gone, or a slow rank as fast as its median peer.

    From a replay of the steps (`goodput.whatif`).
    """

    by_state: dict[str, Gain]
    by_rank: dict[int, Gain]


@dataclass
class Account:
    """The whole run. `status` is running, down, unobserved or one of facts.FINAL_STATUSES; `world_size` is that of its end.

    Its sums are kept once they are computed: `ranks` must not change after that.
    """

    run: str
    start_ns: int
    end_ns: int
    status: str
    world_size: int
    ranks: list[RankAccount]
    restarts: list[Restart]
    straggler: Straggler
    threshold_ns: int
    last_progress_ns: int
    clamped: int
    samples: int
    device: str = ""
    commits: int = 0  # checkpoints committed
    commit_pairs: int = 0  # commits that followed another one of the same attempt
    commit_pairs_ns: int = 0  # the time between those, summed
    unfinished_commits: bool = False
    failures: int = 0  # attempts whose end is not in NO_FAILURE
    alive_ns: int = 0  # time in which an attempt was alive
    allocated_ns: int = 0  # the run's time without that between two allocations
    loader: LoaderSummary = field(default_factory=LoaderSummary)
    stacks: list[tuple[int, SampledStacks]] = field(default_factory=list)  # by rank, of the sampled ones
    once: list[int] = field(default_factory=vector)  # GPU-ns per state that are fold.PaidOnce
    total_steps: int | None = None  # declared
    next_step: int | None = None  # after the last kept step; None in a part of the run
    unmeasured: int = 0  # steps that were timed without phases, within the overhead budget
    planned: PlannedLimits = field(default_factory=PlannedLimits)
    step_lines: StepLines | None = None  # of the run log that the account is computed from
    is_of_workers: bool = False  # its processes have no ranks; see attempts.Run.is_of_workers
    left_out: int = 0  # processes of these that are not counted
    is_part: bool = False  # of a part of the run's time
    is_to_end: bool = False  # that part reaches up to what was reported last
    replayed: ReplayedGains | None = None  # where its steps were at hand
    slow_link: SlowLink | None = None  # now, where agents report the connections of its ranks

    def gpu_ns(self) -> list[int]:
        return list(self._gpu_ns)

    @cached_property
    def _gpu_ns(self) -> list[int]:
        return sum_gpu_ns(self.ranks)

    @cached_property
    def operations(self) -> Operations:
        return by_operation(((rank.devices, rank.exposed) for rank in self.ranks), self.least_waits)

    @cached_property
    def least_waits(self) -> LeastWaits:
        """The ranks that waited least in each operation."""
        return result_of(comparing(rank.exposed for rank in self.ranks))

    @cached_property
    def _wall_gpu_ns(self) -> int:
        return sum(rank.wall_ns * rank.all_devices for rank in self.ranks)

    def rank_count(self) -> int:
        """The number of ranks that were ever expected."""
        return sum(rank.count for rank in self.ranks)

    @cached_property
    def slow_issue(self) -> SlowIssue | None:
        if self.is_part and not self.is_to_end:
            return None  # The newest calls' times are no figure of an hour ago.
        return slow_issue(self.ranks, self.straggler.peers)

    def by_role(self) -> dict[str, list[RankAccount]]:
        """The ranks of each role, the role with the most GPU time first; {} where all ranks have one role."""
        parts: dict[str, list[RankAccount]] = {}
        for rank in self.ranks:
            parts.setdefault(rank.role_name(), []).append(rank)
        if len(parts) < 2 or parts.keys() == {"trainer", "unobserved"}:
            return {}
        weight = {role: sum(r.wall_ns * r.all_devices for r in ranks) for role, ranks in parts.items()}
        return {role: parts[role] for role in sorted(parts, key=lambda role: (-weight[role], role))}

    def wall_gpu_ns(self) -> int:
        return self._wall_gpu_ns

    def device_share(self) -> float:
        """Share of the observed GPU time whose phases are on a device's clock; the rest is on the host's."""
        observed = self.wall_gpu_ns() - self.gpu_ns()[_UNOBSERVED]
        return sum(rank.device_ns * rank.devices for rank in self.ranks) / observed if observed > 0 else 0.0

    def phases_share(self) -> float | None:
        """Share of the whole run's steps whose phases were measured; the others' time is unattributed."""
        steps = sum(rank.kept_steps + rank.lost_steps for rank in self.ranks)
        return max(1 - self.unmeasured / steps, 0.0) if steps else None

    def ratio(self, factor: str) -> float | None:
        """A factor of the chain (FACTORS), None when it is unknown or above 1 (see figures.input_errors)."""
        found = self.raw_ratio(factor)
        return None if found is not None and found > 1 else found

    def raw_ratio(self, factor: str) -> float | None:
        """The factor as it follows from the inputs, also above 1."""
        wall = self.wall_gpu_ns()
        productive = self.gpu_ns()[PRODUCTIVE]
        kept = sum(rank.kept_ns * rank.devices for rank in self.ranks)
        if factor == "availability":
            return kept / wall if wall else None
        if factor == "step_efficiency":
            return productive / kept if kept else None
        if factor == "goodput":
            return productive / wall if wall else None
        flops: float = 0
        most: float = 0
        for rank in self.ranks:
            done = rank.hardware_flops if factor == "hfu" else rank.flops
            if done is None or rank.peak is None:
                return None
            flops += done
            spent_ns = rank.states[PRODUCTIVE] if factor == "compute_efficiency" else rank.wall_ns
            most += rank.peak * spent_ns * rank.count
        return flops * 1e9 / most if most else None

    def gpu_hour_cost(self) -> float | None:
        """Mean price in dollars over the ranks that declare one."""
        prices = [rank.gpu_hour_cost for rank in self.ranks if rank.gpu_hour_cost is not None]
        return sum(prices) / len(prices) if prices else None


class Engine:
    """Computes an account step by step: feed every attempt's steps in order, then call `finish` once."""

    def __init__(
        self,
        run: Run,
        facts: Facts,
        fold_type=Fold,
        groups_type=Groups,
        planned: PlannedLimits | None = None,
    ):
        """`planned` has what is known of the run's planned phases, where not all rows will be fed."""
        self.run, self.facts = run, facts
        self.planned = PlannedLimits() if planned is None else planned
        self.folds = {
            key: fold_type(attempt, *facts.criteria(key), self.planned)
            for key, attempt in run.attempts.items()
            if key in facts.bounds  # Not those that have begun since the facts were gathered.
        }
        self.groups = groups_type(self.folds)

    def copy(self) -> Engine:
        return result_of(self.copying())

    def copying(self) -> Slices[Engine]:
        """As `copy`, in slices."""
        other = copy(self)
        other.folds, other.planned = {}, self.planned.copy()
        for at, (key, fold) in enumerate(self.folds.items()):
            if at % AT_A_TIME == 0:
                yield
            other.folds[key] = mine = fold.copy()
            mine.planned = other.planned
        other.groups = self.groups.copy(other.folds)
        return other

    def follow(self, facts: Facts) -> bool:
        """Continue under newer facts of the same run; False if folded steps would differ under them."""
        return result_of(self.following(facts))

    def following(self, facts: Facts) -> Slices[bool]:
        """As `follow`, in slices. Where it is False, or not finished, some folds may have followed, which is right too."""
        if self.groups.late:
            return False
        # Not those attempts that have begun since the facts were gathered.
        for at, key in enumerate([key for key in self.run.attempts if key in facts.bounds]):
            if at % AT_A_TIME == 0:
                yield
            criteria = facts.criteria(key)
            if key not in self.folds:
                self.folds[key] = Fold(self.run.attempts[key], *criteria, self.planned)
                self.folds[key].final = False
            elif not self.folds[key].fits(*criteria):
                return False
            self.folds[key].follow(*criteria)
        self.facts = facts
        yield
        self.groups.find_members()
        return not self.groups.late

    def row(self, key: Key, row: Row) -> None:
        """Take a row of cumulative totals of the attempt `key`."""
        compared = self.folds[key].row(row)
        if compared is not None:
            self.groups.add(key, row.step, self.folds[key].last_count, compared)

    def add(self, key: Key, step: int, count: int, *recorded) -> None:
        """Take `count` steps up to `step` as vectors of ns per state; see Fold.add."""
        compared = self.folds[key].add(step, count, *recorded)
        if compared is not None:
            self.groups.add(key, step, count, compared)

    def settle(self, tails: dict[Key, list[int]] | None = None) -> None:
        """Finish all folds and compare the steps that still wait; see `finish`."""
        result_of(self._settling(tails))

    def _settling(self, tails: dict[Key, list[int]] | None) -> Slices[None]:
        for at, (key, fold) in enumerate(self.folds.items()):
            if at % AT_A_TIME == 0:
                yield
            first = fold.finish(None if tails is None else tails.get(key, vector()))
            if first is not None:
                self.groups.add(key, first[0], first[1], first[2:], first=True)
        yield from self.groups.flushing()

    def finish(self, tails: dict[Key, list[int]] | None = None) -> Account:
        """The account. `tails` is the time after each last step by state, where no live totals have it."""
        return result_of(self.finishing(tails))

    def finishing(self, tails: dict[Key, list[int]] | None = None) -> Slices[Account]:
        """As `finish`, in slices."""
        run, facts = self.run, self.facts
        yield from self._settling(tails)
        straggler = yield from sum_stragglers(self.groups)
        restarts = {n: Restart(n, facts.starts[n], facts.points[n]) for n in facts.restarts}
        typical = _typical(run)
        once = PaidOnce(facts)
        ranks = []
        for some in facts.expected.apart(facts.by_rank):
            if len(ranks) % AT_A_TIME == 0:
                yield
            ranks.append(_rank_account(self, some, restarts, typical, once))
        yield
        result = Account(
            run=run.name,
            start_ns=facts.start_ns,
            end_ns=facts.end_ns,
            status=facts.status,
            world_size=_world_size(facts),
            ranks=ranks,
            restarts=list(restarts.values()),
            straggler=straggler,
            threshold_ns=facts.threshold_ns,
            last_progress_ns=max(
                (f.last_end_ns for f in self.folds.values() if f.steps), default=facts.start_ns
            ),
            clamped=facts.overlaps + sum(fold.clamped + is_cut(fold.attempt) for fold in self.folds.values()),
            samples=sum(f.samples for f in self.folds.values()),
            device=next((a.device for own in facts.by_rank.values() for a in own if a.device), ""),
            loader=summarize_loaders(run.attempts.values()),
            stacks=sampled_ranks(run.attempts.values()),
            allocated_ns=facts.allocated_ns(),
            total_steps=_total_steps(run),
            next_step=_next_step(self),
            unmeasured=sum(attempt.unmeasured for attempt in run.attempts.values()),
            planned=self.planned,
            left_out=len(run.left_out()),
            is_of_workers=bool(facts.own_points),
            is_part=facts.is_part,
            is_to_end=facts.is_to_end,
        )
        yield
        result.once = once.total(result.gpu_ns())
        yield
        _count_failures(result, run, facts)
        return result


def compute(
    run: Run,
    now_ns: int,
    *,
    stall_seconds: float = STALL_SECONDS,
    stale_seconds: float | None = None,
    known_only: bool = False,
    window: tuple[int | None, int | None] | None = None,
) -> Account:
    """The account of `run` at `now_ns` (unix ns).

    `stall_seconds` is the least length of a stall. With `stale_seconds`, an attempt without a report for
    that long is `unobserved` from its last report on; without, a process last seen alive counts as alive. With
    `known_only` the account of a running run ends at the last moment up to which all its ranks were observed, so
    nothing is guessed; else each rank is taken to be still in its last phase. `window` (start_ns, end_ns) limits
    the account to a part of the run, either end None for the run's own; steps are still kept or lost by the whole run.
    """
    lengths = StepLengths.for_threshold(stall_seconds)
    for attempt in run.attempts.values():
        lengths.add_rows(attempt.ordered_rows())
    threshold = lengths.threshold_ns(stall_seconds, run.stepping())
    engine = Engine(run, gather(run, now_ns, threshold, stale_seconds, known_only, window))
    for own in engine.facts.by_rank.values():
        for attempt in own:
            for row in attempt.ordered_rows():
                engine.row((attempt.rank, attempt.attempt), row)
    return engine.finish()


def _world_size(facts: Facts) -> int:
    """Ranks that are expected at the end; of a run of workers, which end one by one, those of all time."""
    if facts.own_points and facts.status != "running":
        return len(facts.expected)
    return sum(one.count for one in facts.expected.ranges if one.spans and one.spans[-1][1] == facts.end_ns)


def _rank_account(
    engine: Engine, some: RankRange, restarts: dict[int, Restart], typical, once: PaidOnce
) -> RankAccount:
    """Place the rank's attempts one after the other in the times in which it is expected."""
    rank = some.first
    attempts = engine.facts.by_rank.get(rank, [])
    result = RankAccount(rank, wall_ns=sum(end - start for start, end in some.spans), count=some.count)
    _describe(result, attempts, typical)
    for attempt in attempts:
        fold = engine.folds[rank, attempt.attempt]
        _add_attempt(result, attempt, fold, restarts)
        once.add(attempt, fold, result.devices)
    for start, end, state, attempt in gaps(engine.facts, rank):
        result.states[state] += end - start
        once.add_gap(attempt, state, (end - start) * result.devices)
        restart = None if attempt is None else restarts.get(attempt.attempt)
        if restart is not None and state == _DOWN:
            restart.down_gpu_ns += (end - start) * result.devices
        elif restart is not None and state == _STARTUP:
            restart.startup_gpu_ns += (end - start) * result.devices
    return result


def _describe(result: RankAccount, attempts: list[Attempt], typical: tuple[int, float | None]) -> None:
    """Copy the declared fields of the rank's newest attempt."""
    if not attempts:
        # An unreported rank is taken to have as many devices as the others, and to have done nothing.
        result.devices, result.peak = typical
        result.flops = result.hardware_flops = 0.0
        return
    newest = attempts[-1]
    for name in _DECLARED_KEPT:
        setattr(result, name, getattr(newest, name))
    result.peak = peak_of(newest)
    result.flops = None if any(a.flops_per_step is None for a in attempts) else 0.0
    result.hardware_flops = None if any(a.hardware_flops_per_step is None for a in attempts) else 0.0
    result.observed = True


def peak_of(attempt: Attempt) -> float | None:
    """Dense peak of an attempt's devices together, FLOP/s: as declared, else from the table, else None."""
    if attempt.peak_flops_per_second is not None:
        return attempt.peak_flops_per_second
    found = peak(attempt.device, attempt.dtype) if attempt.device and attempt.dtype else None
    return None if found is None else found * attempt.devices


def _typical(run: Run) -> tuple[int, float | None]:
    """Devices per rank, and the peak if all reported ranks have the same."""
    attempts = list(run.attempts.values())
    peaks = {peak_of(a) for a in attempts}
    return max((a.devices for a in attempts), default=1), peaks.pop() if len(peaks) == 1 else None


def _total_steps(run: Run) -> int | None:
    """The highest total that the newest attempt's ranks declare."""
    newest = run.newest()
    totals = [a.total_steps for a in run.attempts.values() if a.attempt == newest and a.total_steps]
    return max(totals, default=None)


def _next_step(engine: Engine) -> int | None:
    """The index after the last kept step, None in a part of the run or where there is none."""
    if engine.facts.is_part:
        return None
    last = max((min(fold.top_step, fold.limit) for fold in engine.folds.values()), default=-1)
    return None if last < 0 else last + 1


def _add_attempt(result: RankAccount, attempt: Attempt, fold: Fold, restarts: dict[int, Restart]) -> None:
    """Add an attempt's sums to its rank's."""
    states = states_of(attempt, fold)
    result.states = list(map(add, result.states, states))
    unit = f"{attempt.attempt} {attempt.stage} {attempt.group_name()}"  # whose waits are compared with this one's
    result.exposed.append(exposed_of(attempt.collectives, states, unit))
    result.guessed_loader |= fold.has_time(attempt, ESTIMATED_LOADER)
    result.guessed_update |= fold.has_time(attempt, ESTIMATED_OPTIMIZER)
    result.sampled |= attempt.hardware.get("compute_ns", 0) > 0
    energy = energy_mj(attempt, sum(states))
    if energy is not None:
        result.energy_mj += energy
        result.metered = list(map(add, result.metered, states))
    result.kept_steps += fold.kept_steps
    result.lost_steps += fold.lost_steps
    result.kept_ns += fold.kept_ns
    result.saved_ns += fold.saved_ns
    result.device_ns += fold.device_ns
    result.kept_samples += fold.kept_samples
    if result.flops is not None and attempt.flops_per_step is not None:
        result.flops += fold.work * attempt.flops_per_step
    if result.hardware_flops is not None and attempt.hardware_flops_per_step is not None:
        result.hardware_flops += fold.work * attempt.hardware_flops_per_step
    rate = fold.throughput.rate()
    if rate is not None:
        result.best_samples_per_second = max(rate, result.best_samples_per_second or 0.0)
    restart = restarts.get(attempt.attempt)
    if restart is not None:
        restart.devices += result.devices
        restart.startup_gpu_ns += sum(fold.kept[i] + fold.rest[i] for i in BEGINNING) * result.devices
    for number, (steps, ns) in fold.lost_by.items():
        restarts[number].lost_steps += steps
        restarts[number].lost_gpu_ns += ns * result.devices


def _count_failures(account: Account, run: Run, facts: Facts) -> None:
    """Checkpoints, failures and the time in which the run was alive, by attempt number."""
    numbers: dict[int, list[Attempt]] = {}
    newest = run.newest()
    # Not those that have begun since the facts were gathered.
    for attempt in chain.from_iterable(facts.by_rank.values()):
        numbers.setdefault(attempt.attempt, []).append(attempt)
    for number, attempts in numbers.items():
        saver = max(attempts, key=lambda a: (a.commits, -a.rank))
        account.commits += saver.commits
        if saver.commits > 1 and saver.first_commit_ns is not None:
            account.commit_pairs += saver.commits - 1
            account.commit_pairs_ns += saver.last_commit_ns - saver.first_commit_ns
        account.unfinished_commits |= any(a.begun and a.committed is None for a in attempts)
        over = number != newest or all(a.known_end_ns() is not None for a in attempts)
        account.failures += over and any(a.end_reason() not in NO_FAILURE for a in attempts)
        bounds = [facts.bounds[a.rank, number] for a in attempts]
        account.alive_ns += max(b.to_ns for b in bounds) - min(b.from_ns for b in bounds)
