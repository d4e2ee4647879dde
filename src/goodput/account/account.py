"""The account of a run: every rank's time while it was expected, each nanosecond in one state.

The states of a rank sum to its wall time exactly, and ratios are computed from sums. by_core has what adds these up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import add, mul
from typing import Any, NamedTuple

from goodput.account.attempts import Attempt, Failure, Run, has_time
from goodput.account.collectives.arrival_skew import LeastWaits
from goodput.account.collectives.operation_sums import Operations, comparing, exposed_of, summing
from goodput.account.collectives.slow_link import SlowLink
from goodput.account.document_types import Gain, StepLines
from goodput.account.facts import FINAL_STATUSES, Facts, Key, RankRange, gaps
from goodput.account.hardware import energy_mj, states_of
from goodput.account.loader_summary import LoaderSummary, summarize_loaders
from goodput.account.mfu.peaks import peak
from goodput.account.ranks import RankAccount, chosen, sum_gpu_ns, values
from goodput.account.resume import KEEP_ALL, Restart, provisional_limit
from goodput.account.sampled_stacks import sampled_ranks
from goodput.account.slow_ranks.peers import Peers, peers_of
from goodput.account.slow_ranks.slow_issue import SlowIssue, slow_issue
from goodput.account.stall_threshold import PlannedLimits
from goodput.account.states import BEGINNING, INDEX, PHASE_STATES, PRODUCTIVE, UNATTRIBUTED, vector
from goodput.account.straggler import Straggler
from goodput.defaults import CPU_NAME, ESTIMATED_LOADER, ESTIMATED_OPTIMIZER
from goodput.slices import Slices, result_of
from goodput.wire.sampled_stacks import SampledStacks

_UNOBSERVED = INDEX["unobserved"]
# What the first start of a run costs; its steps and those of later starts cost the rest.
_FIRST_START = (*BEGINNING, INDEX["queue"])

DECLARED_KEPT = (
    *("host", "role", "worker", "dtype", "stage", "devices", "microbatches", "flops_unknown"),
    *("gpu_hour_cost", "gpu_power_watts", "ideal_samples_per_second", "reached_flops_per_second"),
    *("reached_bus_bytes_per_second", "h2d_bytes_per_second", "reached_h2d_bytes_per_second"),
    "core_wait_ratio",
)
# Ends of an attempt that are no failure; being killed is one.
NO_FAILURE = ("finished", "resumed", "cancelled")
FACTORS = ("availability", "step_efficiency", "goodput", "compute_efficiency", "mfu", "hfu")


@dataclass(frozen=True)
class ReplayedGains:
    """What it would bring if a state were gone, or a slow rank as fast as its median peer.

    From a replay of the steps (`goodput.whatif`).
    """

    by_state: dict[str, Gain]
    by_rank: dict[int, Gain]


@dataclass
class Account:
    """The whole run. `status` is running, unobserved or one of facts.FINAL_STATUSES; `world_size` is that of its end.

    Its sums are kept once they are computed: `ranks` must not change after that.
    """

    run: str
    start_ns: int
    end_ns: int
    status: str
    world_size: int
    ranks: Sequence[RankAccount]
    restarts: list[Restart]
    straggler: Straggler
    threshold_ns: int
    last_progress_ns: int
    clamped: int
    samples: int
    device: str = ""
    is_on_cpu: bool = False  # its ranks are known to use no GPU
    ranks_elsewhere: int = 0  # of the run, which the account of some ranks' pages has not
    # Of pages: time in evaluation phases up to the last reports, also before the first step. Other records do not have it.
    evaluated_gpu_ns: int | None = None
    commits: int = 0  # checkpoints committed
    commit_pairs: int = 0  # commits that followed another one of the same attempt
    commit_pairs_ns: int = 0  # the time between those, summed
    unfinished_commits: bool = False
    failures: int = 0  # attempts whose end is not in NO_FAILURE
    alive_ns: int = 0  # time in which an attempt was alive
    allocated_ns: int = 0  # the run's time without that between two allocations
    loader: LoaderSummary = field(default_factory=LoaderSummary)
    stacks: list[tuple[int, SampledStacks]] = field(default_factory=list)  # by rank, of the sampled ones
    once: list[int] = field(default_factory=vector)  # GPU-ns per state that are PaidOnce
    total_steps: int | None = None  # declared
    next_step: int | None = None  # after the last kept step; None in a part of the run
    unmeasured: int = 0  # steps that were timed without phases, within the overhead budget
    planned: PlannedLimits = field(default_factory=PlannedLimits)
    step_lines: StepLines | None = None  # of the run log that the account is computed from
    is_of_workers: bool = False  # its processes have no ranks; see attempts.Run.is_of_workers
    left_out: int = 0  # processes of these that are not counted
    is_part: bool = False  # of a part of the run's time
    is_to_end: bool = False  # that part reaches up to what was reported last
    may_restart: bool = False  # it failed, and nobody has declared its end: something may start it again
    replayed: ReplayedGains | None = None  # where its steps were at hand
    peers: Peers | None = None  # for which ranks waited before their first step
    slow_link: SlowLink | None = None  # now, where agents report the connections of its ranks
    failed: tuple[Attempt, Failure] | None = None  # of a run that has failed: the process that failed first
    committed_step: int | None = (
        None  # of a run with `failed`: up to which a committed checkpoint keeps its steps
    )
    # By host, by how many seconds the times of its processes were moved.
    moved_clocks: dict[str, list[float]] = field(default_factory=dict)

    def is_settled(self) -> bool:
        """Whether it is over, and whoever starts it again continues a run whose end was declared or that finished."""
        return self.status in FINAL_STATUSES and not self.may_restart

    def of(self, name: str) -> list[Any]:
        """An attribute of each rank."""
        return values(self.ranks, name)

    def _weighed(self, name: str) -> int:
        """The sum over all ranks' devices."""
        return sum(map(mul, self.of(name), self.of("all_devices")))

    def gpu_ns(self) -> list[int]:
        return list(self._gpu_ns)

    @cached_property
    def _gpu_ns(self) -> list[int]:
        return sum_gpu_ns(self.ranks)

    @cached_property
    def operations(self) -> Operations:
        return result_of(self.summing_operations())

    def summing_operations(self) -> Slices[Operations]:
        """`operations` in slices, which then are computed."""
        if not any(self.of("has_operations")):
            self.least_waits, self.operations = LeastWaits(), {}
            return {}
        exposed = self.of("exposed")
        self.least_waits = yield from comparing(exposed)
        self.operations = yield from summing(zip(self.of("devices"), exposed, strict=True), self.least_waits)
        return self.operations

    @cached_property
    def least_waits(self) -> LeastWaits:
        """The ranks that waited least in each operation."""
        return result_of(comparing(self.of("exposed")))

    @cached_property
    def _wall_gpu_ns(self) -> int:
        return self._weighed("wall_ns")

    def rank_count(self) -> int:
        """The number of ranks that were ever expected."""
        return sum(self.of("count"))

    def hosts(self) -> dict[int, str]:
        """By rank, of the ranges of ranks without a report only the first."""
        return dict(zip(self.of("rank"), self.of("host"), strict=True))

    @cached_property
    def slow_issue(self) -> SlowIssue | None:
        if self.is_part and not self.is_to_end:
            return None  # The newest calls' times are no figure of an hour ago.
        return slow_issue(self.ranks, self.straggler.peers) if any(self.of("has_operations")) else None

    def calls_that_slow(self, rank: int) -> SlowIssue | None:
        """A slow rank's slow calls, where these explain at least half of what its steps have more work than its peers'."""
        found = self.slow_issue
        if found is None or found.rank != rank:
            return None
        return found if 2 * (found.issue_ns - found.usual_ns) >= self.straggler.excess_ns(rank) else None

    def by_role(self) -> dict[str, Sequence[RankAccount]]:
        """The ranks of each role, the role with the most GPU time first; {} where all ranks have one role."""
        parts: dict[str, list[int]] = {}
        for at, role in enumerate(self.of("role_name")):
            parts.setdefault(role, []).append(at)
        if len(parts) < 2 or parts.keys() == {"trainer", "unobserved"}:
            return {}
        ranks = {role: chosen(self.ranks, at) for role, at in parts.items()}
        weight = {role: sum(sum_gpu_ns(own)) for role, own in ranks.items()}
        return {role: ranks[role] for role in sorted(parts, key=lambda role: (-weight[role], role))}

    def wall_gpu_ns(self) -> int:
        return self._wall_gpu_ns

    def device_share(self) -> float:
        """Share of the observed GPU time whose phases are on a device's clock; the rest is on the host's."""
        observed = self.wall_gpu_ns() - self.gpu_ns()[_UNOBSERVED]
        return self._weighed("device_ns") / observed if observed > 0 else 0.0

    def phases_share(self) -> float | None:
        """Share of the whole run's steps whose phases were measured; the others' time is unattributed."""
        steps = sum(self.of("kept_steps")) + sum(self.of("lost_steps"))
        return max(1 - self.unmeasured / steps, 0.0) if steps else None

    def ratio(self, factor: str) -> float | None:
        """A factor of the chain (FACTORS), None when it is unknown or above 1 (see figures.input_errors)."""
        found = self.raw_ratio(factor)
        return None if found is not None and found > 1 else found

    def raw_ratio(self, factor: str) -> float | None:
        """The factor as it follows from the inputs, also above 1."""
        return self._ratios[factor]

    @cached_property
    def _ratios(self) -> dict[str, float | None]:
        wall, productive, kept = self.wall_gpu_ns(), self.gpu_ns()[PRODUCTIVE], self._weighed("kept_ns")
        flops, most = self.of("flops"), self._most_flops("wall_ns")
        return {
            "availability": kept / wall if wall else None,
            "step_efficiency": productive / kept if kept else None,
            "goodput": productive / wall if wall else None,
            "compute_efficiency": _share_of(flops, self._most_flops("productive_ns")),
            "mfu": _share_of(flops, most),
            "hfu": _share_of(self.of("hardware_flops"), most),
        }

    def _most_flops(self, name: str) -> float | None:
        """What the devices of all ranks could do in this time, in FLOPs x 1e9; None where a peak is not known."""
        peaks = self.of("peak")
        if None in peaks:
            return None
        return sum(map(mul, map(mul, peaks, self.of(name)), self.of("count")))

    @cached_property
    def most_steps(self) -> int:
        """The kept steps of the rank that has most."""
        return max(self.of("kept_steps"), default=0)

    def gpu_hour_cost(self) -> float | None:
        """Mean price in dollars over the ranks that declare one."""
        prices = [price for price in self.of("gpu_hour_cost") if price is not None]
        return sum(prices) / len(prices) if prices else None


class PaidOnce:
    """GPU-ns per state that a run pays once, however many steps it makes: at its first start and at its end.

    The end is what follows the last step of a finished run: its unattributed time, and a state that has time nowhere
    else, such as a single checkpoint at the end.
    """

    def __init__(self, facts: Facts):
        self._first = min(facts.starts, default=None)
        self._last = max(facts.starts, default=None) if facts.status == "finished" else None
        self._start, self._end = vector(), vector()

    def add(self, number: int, spent: Sequence[int], ending: Sequence[int]) -> None:
        """GPU-ns by state of attempts of this number, and the part of them that follows the last step."""
        if number == self._first:
            for i in BEGINNING:
                self._start[i] += spent[i]
        if number == self._last:
            self._end = list(map(add, self._end, ending))

    def add_gap(self, attempt: Attempt | None, state: int, gpu_ns: int) -> None:
        """Time without an attempt, before `attempt` or, with None, after the rank's last."""
        if attempt is None:
            self._end[state] += gpu_ns if state == UNATTRIBUTED and self._last is not None else 0
        elif attempt.attempt == self._first and state in _FIRST_START:
            self._start[state] += gpu_ns

    def total(self, whole: list[int]) -> list[int]:
        """`whole` is the run's GPU-ns by state."""
        if self._last is None:
            return self._start
        only = (i == UNATTRIBUTED or ns == whole[i] for i, ns in enumerate(self._end))
        return [
            max(start, end if is_only else 0)
            for start, end, is_only in zip(self._start, self._end, only, strict=True)
        ]


class RowSums(NamedTuple):
    """What all attempts have together."""

    progress_ns: int | None  # the last end of a step
    clamped: int
    samples: int
    last_step: int  # the index of the last kept one, -1 without one


def account_of(
    run: Run,
    facts: Facts,
    found: RowSums,
    straggler: Straggler,
    ranks: Sequence[RankAccount],
    restarts: list[Restart],
) -> Account:
    """The account of these ranks, without what is paid once."""
    device = next((a.device for own in facts.by_rank.values() for a in own if a.device), "")
    result = Account(
        run=run.name,
        start_ns=facts.start_ns,
        end_ns=facts.end_ns,
        status=facts.status,
        world_size=_world_size(facts),
        ranks=ranks,
        restarts=restarts,
        straggler=straggler,
        threshold_ns=facts.threshold_ns,
        last_progress_ns=facts.start_ns if found.progress_ns is None else found.progress_ns,
        clamped=facts.overlaps + found.clamped,
        samples=found.samples,
        device=device,
        ranks_elsewhere=_ranks_elsewhere(run),
        is_on_cpu=bool(re.match(CPU_NAME, device)) if device else run.is_without_gpu,
        loader=summarize_loaders(run.attempts.values()),
        stacks=sampled_ranks(run.attempts.values()),
        allocated_ns=facts.allocated_ns(),
        total_steps=_total_steps(run),
        next_step=None if facts.is_part or found.last_step < 0 else found.last_step + 1,
        unmeasured=sum(attempt.unmeasured for attempt in run.attempts.values()),
        left_out=len(run.left_out()),
        is_of_workers=bool(facts.own_points),
        is_part=facts.is_part,
        is_to_end=facts.is_to_end,
        may_restart=facts.may_restart,
        peers=peers_of(run),
        evaluated_gpu_ns=sum(map(_evaluated_gpu_ns, run.attempts.values())) if run.is_of_pages else None,
        moved_clocks=_moved_clocks(run),
        failed=_first_failure(run) if facts.status == "failed" else None,
    )
    _count_failures(result, run, facts)
    if result.failed is not None:
        committed = provisional_limit(run, facts.points)
        result.committed_step = committed if 0 <= committed < KEEP_ALL else None
    return result


def _share_of(done: list[float | None], most: float | None) -> float | None:
    known = [one for one in done if one is not None]
    return sum(known) * 1e9 / most if most and len(known) == len(done) else None


def _ranks_elsewhere(run: Run) -> int:
    if run.only_ranks is None:
        return 0
    newest = max((number for _, number in run.attempts), default=0)
    world = max((one.world_size for (_, number), one in run.attempts.items() if number == newest), default=0)
    return max(world - len(run.only_ranks), 0)


def _world_size(facts: Facts) -> int:
    """Ranks that are expected at the end; of a run of workers, which end one by one, those of all time."""
    if facts.own_points and facts.status != "running":
        return len(facts.expected)
    return sum(one.count for one in facts.expected.ranges if one.spans and one.spans[-1][1] == facts.end_ns)


def rank_account(
    facts: Facts,
    sums: Mapping[Key, Any],
    some: RankRange,
    restarts: dict[int, Restart],
    typical,
    once: PaidOnce,
) -> RankAccount:
    """Place the rank's attempts one after the other in the times in which it is expected."""
    rank = some.first
    attempts = facts.by_rank.get(rank, [])
    result = RankAccount(rank, wall_ns=sum(end - start for start, end in some.spans), count=some.count)
    _describe(result, attempts, typical)
    for attempt in attempts:
        own = sums[rank, attempt.attempt]
        _add_attempt(result, attempt, own, restarts)
        spent = [(kept + rest) * result.devices for kept, rest in zip(own.kept, own.rest, strict=True)]
        once.add(attempt.attempt, spent, [ns * result.devices for ns in own.ending])
    for start, end, state, attempt in gaps(facts, rank):
        result.states[state] += end - start
        once.add_gap(attempt, state, (end - start) * result.devices)
        if attempt is not None and attempt.attempt in restarts:
            restarts[attempt.attempt].add_gap(state, (end - start) * result.devices)
    return result


def _describe(result: RankAccount, attempts: list[Attempt], typical: tuple[int, float | None]) -> None:
    """Copy the declared fields of the rank's newest attempt."""
    if not attempts:
        # An unreported rank is taken to have as many devices as the others, and to have done nothing.
        result.devices, result.peak = typical
        result.flops = result.hardware_flops = 0.0
        return
    newest = attempts[-1]
    for name in DECLARED_KEPT:
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


def typical(run: Run) -> tuple[int, float | None]:
    """Devices per rank, and the peak if all reported ranks have the same."""
    attempts = list(run.attempts.values())
    peaks = {peak_of(a) for a in attempts}
    return max((a.devices for a in attempts), default=1), peaks.pop() if len(peaks) == 1 else None


def _first_failure(run: Run) -> tuple[Attempt, Failure] | None:
    """Of the newest attempt, the process that failed first: the others may have failed because of it."""
    newest = run.newest()
    found = [(one, one.failure) for one in run.attempts.values() if one.attempt == newest and one.failure]
    return min(found, key=lambda pair: (pair[1].time_ns, pair[0].rank), default=None)


def _moved_clocks(run: Run) -> dict[str, list[float]]:
    found: dict[str, set[float]] = {}
    for attempt in run.attempts.values():
        if attempt.clock_moved_seconds is not None:
            found.setdefault(attempt.host, set()).add(attempt.clock_moved_seconds)
    return {host: sorted(seconds) for host, seconds in sorted(found.items())}


def _evaluated_gpu_ns(attempt: Attempt) -> int:
    phases = zip(attempt.phases, attempt.totals, strict=False)
    states = ((PHASE_STATES.get(phase) or attempt.phase_states.get(phase), ns) for phase, ns in phases)
    return attempt.devices * sum(ns for state, ns in states if state == "evaluation")


def _total_steps(run: Run) -> int | None:
    """The highest total that the newest attempt's ranks declare."""
    newest = run.newest()
    totals = [a.total_steps for a in run.attempts.values() if a.attempt == newest and a.total_steps]
    return max(totals, default=None)


def _add_attempt(result: RankAccount, attempt: Attempt, sums: Any, restarts: dict[int, Restart]) -> None:
    """Add an attempt's sums to its rank's."""
    states = states_of(attempt, sums)
    result.states = list(map(add, result.states, states))
    unit = f"{attempt.attempt} {attempt.stage} {attempt.group_name()}"  # whose waits are compared with this one's
    result.exposed.append(exposed_of(attempt.collectives, states, unit, sums.device_ns > 0))
    result.guessed_loader |= has_time(attempt, ESTIMATED_LOADER)
    result.guessed_update |= has_time(attempt, ESTIMATED_OPTIMIZER)
    result.sampled |= attempt.hardware.get("compute_ns", 0) > 0
    energy = energy_mj(attempt, sum(states))
    if energy is not None:
        result.energy_mj += energy
        result.metered = list(map(add, result.metered, states))
    result.kept_steps += sums.kept_steps
    result.lost_steps += sums.lost_steps
    result.kept_ns += sums.kept_ns
    result.saved_ns += sums.saved_ns
    result.device_ns += sums.device_ns
    result.kept_samples += sums.kept_samples
    if result.flops is not None and attempt.flops_per_step is not None:
        result.flops += sums.work * attempt.flops_per_step
    if result.hardware_flops is not None and attempt.hardware_flops_per_step is not None:
        result.hardware_flops += sums.work * attempt.hardware_flops_per_step
    rate = sums.rate
    if rate is not None:
        result.best_samples_per_second = max(rate, result.best_samples_per_second or 0.0)
    restart = restarts.get(attempt.attempt)
    if restart is not None:
        restart.devices += result.devices
        restart.startup_gpu_ns += sum(sums.kept[i] + sums.rest[i] for i in BEGINNING) * result.devices
    for number, (steps, ns) in sums.lost_by.items():
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
        savers = [a for a in attempts if a.commits]
        saver = max(savers or attempts[:1], key=lambda a: (a.commits, -a.rank))
        account.commits += saver.commits
        if saver.commits > 1 and saver.first_commit_ns is not None:
            account.commit_pairs += saver.commits - 1
            account.commit_pairs_ns += saver.last_commit_ns - saver.first_commit_ns
        account.unfinished_commits |= any(a.begun and a.committed is None for a in attempts)
        over = number != newest or all(a.known_end_ns() is not None for a in attempts)
        account.failures += over and any(a.end_reason() not in NO_FAILURE for a in attempts)
        from_ns, to_ns = facts.span(number, attempts)
        account.alive_ns += to_ns - from_ns
