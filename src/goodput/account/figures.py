"""Figures that follow from an account's sums: checkpoints, throughput, pipeline, money, energy, wrong inputs.

Ratios are ratios of sums; what is unknown is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, sqrt
from operator import mul, or_
from statistics import median_low

from goodput.account.account import Account
from goodput.account.collectives import operation_sums
from goodput.account.collectives.bandwidth import Ceiling, bus_ceiling
from goodput.account.collectives.operation_sums import OperationTime
from goodput.account.document_types import (
    Bubble,
    Cause,
    Checkpoints,
    DeviceCopies,
    PerUnit,
    PhaseShare,
    PipelineWait,
    Throughput,
    Total,
    WholeRun,
)
from goodput.account.mfu.flops import too_high
from goodput.account.ranks import RankAccount, chosen, sum_gpu_ns, values
from goodput.account.slow_ranks.slow_phase import compute_shares
from goodput.account.states import INDEX, STATES
from goodput.defaults import AVOIDABLE_SHARE_MIN
from goodput.slices import AT_A_TIME, Slices, result_of

# No process exists in these states, so nothing measures their energy.
_GONE = tuple(INDEX[state] for state in ("down", "queue", "unobserved"))
_PRODUCTIVE = INDEX["productive"]
_WAITING = tuple(INDEX[state] for state in ("communication", "straggler", "bubble"))
INTERVAL_SOURCE = (
    "Young, A first order approximation to the optimum checkpoint interval (1974): sqrt(2 x save time x mean time "
    "between failures)"
)
# Phases are summed rank by rank.
PHASES_RANKS_MAX = 4096
_POINT_TO_POINT = ("recv", "send")


def compute_phases(account: Account) -> list[PhaseShare]:
    """How compute is divided into phases, see document_types.PhaseShare."""
    times = account.straggler.phases
    if len(times) > PHASES_RANKS_MAX:
        return []
    return [{"phase": phase, "share": share} for phase, share in compute_shares(times.values())]


def early_evaluation_ns(account: Account) -> int | None:
    """GPU-ns of `startup` in which ranks evaluated; None where states after the first step may have moved evaluations."""
    states = account.gpu_ns()
    if account.evaluated_gpu_ns is None or account.is_part or states[INDEX["lost"]] or states[INDEX["stall"]]:
        return None
    return min(max(account.evaluated_gpu_ns - states[INDEX["evaluation"]], 0), states[INDEX["startup"]])


def checkpoints(account: Account) -> Checkpoints:
    """The cost of saving, and the best interval between checkpoints for the observed failures.

    `save_seconds` is per committed checkpoint, of the rank that spends most in it, since the others wait for it. The
    interval is the mean time between commits of one attempt. Time between failures is time in which the run was alive.
    The formula (INTERVAL_SOURCE) holds while saving is short against failures: Daly, A higher order estimate of the
    optimum checkpoint interval (2006).
    """
    alive, commits, failures = account.alive_ns / 1e9, account.commits, account.failures
    most = max(account.of("saved_ns"), default=0) / 1e9
    save = most / commits if commits and most else None
    between = alive / failures if failures else None
    return {
        "committed": commits,
        "unfinished": account.unfinished_commits,
        "save_seconds": save,
        "interval_seconds": account.commit_pairs_ns / account.commit_pairs / 1e9
        if account.commit_pairs
        else None,
        "failures": failures,
        "seconds_between_failures": between,
        "best_interval_seconds": sqrt(2 * save * between) if save and between else None,
        "source": INTERVAL_SOURCE,
    }


# Steps of a training whose total is not declared.
TYPICAL_STEPS = 10_000


def whole_run(account: Account) -> WholeRun | None:
    """The run at its full length, None before its first step, in a part of the run, and of one that has failed."""
    done, wall = account.next_step, account.wall_gpu_ns() / 1e9
    if length_factor(account) is None or done is None or not wall:
        return None
    total = at_full_length(account, wall, sum(account.once) / 1e9)
    return {
        "steps": max(account.total_steps or TYPICAL_STEPS, done),
        "basis": "typical" if account.total_steps is None else "declared",
        "done": done,
        "seconds": account.allocated_ns / 1e9 * (total / wall),
        "gpu_seconds": total,
    }


def at_full_length(account: Account, gpu_seconds: float, once: float) -> float:
    """GPU-seconds at the run's full length; those of them that were paid `once` do not grow."""
    return once + (gpu_seconds - once) * (length_factor(account) or 1.0)


def length_factor(account: Account) -> float | None:
    """The factor by which recurring time grows until the run has made all of its steps; None if that is unknown."""
    done = account.most_steps
    if not done or account.next_step is None or account.status == "failed":
        return None
    missing = max((account.total_steps or TYPICAL_STEPS) - account.next_step, 0)
    return (done + missing) / done


def advice_order(account: Account, causes: list[Cause]) -> list[str]:
    """The causes' states in the order in which to act: by what is avoidable, then by size."""
    whole = at_full_length(account, account.wall_gpu_ns() / 1e9, sum(account.once) / 1e9)

    def avoidable(cause: Cause) -> float:
        part = at_full_length(account, cause["avoidable_gpu_seconds"], 0.0)
        return part if part >= AVOIDABLE_SHARE_MIN * whole else 0.0

    ordered = sorted(causes, key=lambda cause: (-avoidable(cause), -cause["gpu_seconds"]))
    return [cause["state"] for cause in ordered]


def throughput(account: Account) -> Throughput:
    """Kept samples (or tokens) per second of wall time, against an ideal: the user's, or the best the run has shown.

    The best shown is, per rank, its fastest stretch of 32 steps (_core/peak.c), and at least its mean over
    its wall time. `goodput` is the ratio of sums over ranks, samples / (ideal rate x wall time); None if it would be
    above 1, which only a wrong declared ideal can cause (see input_errors). Where only some of the ranks that step report
    samples, they stand for all, since the samples may be those of the whole batch; see `_samples_basis`.
    """
    kept = sum(account.of("kept_samples"))
    wall = account.allocated_ns / 1e9
    reporters, silent = _reporters(account.ranks)
    counted = reporters if len(reporters) and len(silent) else account.ranks
    ideal, basis = _ideal(counted, "ideal_samples_per_second"), "given"
    if ideal is None:
        ideal, basis = _ideal(counted, "best_samples_per_second", shown=True), "best shown"
    elif any(rate is not None for rate in values(silent, "ideal_samples_per_second")):
        # The ideal is given for each rank: of these samples, or a part of what the batch needs?
        whole = _ideal(account.ranks, "ideal_samples_per_second")
        ideal = whole if _exceed_ideal(reporters) else None
    samples_basis = _samples_basis(reporters, silent, kept, ideal, basis)
    if samples_basis == "whole batch on each rank":
        kept /= len(reporters)
    # Without wall time there is no rate, and then no ratio of rates either.
    if not ideal or not wall:
        ideal = basis = None
    return {
        "samples": kept,
        "samples_per_second": kept / wall if wall and kept else None,
        "ideal_samples_per_second": ideal / wall if ideal else None,
        "ideal_basis": basis,
        "goodput": kept / ideal if ideal and 0 < kept <= ideal else None,
        "samples_basis": samples_basis,
        "samples_ranks": len(reporters),
    }


def _reporters(ranks: Sequence[RankAccount]) -> tuple[Sequence[RankAccount], Sequence[RankAccount]]:
    """The ranks that report samples, and those that complete steps without."""
    kept, best = values(ranks, "kept_samples"), values(ranks, "best_samples_per_second")
    steps = map(or_, values(ranks, "kept_steps"), values(ranks, "lost_steps"))
    reports = [bool(samples or rate) for samples, rate in zip(kept, best, strict=True)]
    silent = [
        at
        for at, (some, is_reporter) in enumerate(zip(steps, reports, strict=True))
        if some and not is_reporter
    ]
    reporters = ranks if all(reports) else chosen(ranks, [at for at, one in enumerate(reports) if one])
    return reporters, chosen(ranks, silent)


def _exceed_ideal(ranks: Sequence[RankAccount]) -> bool:
    """Whether a rank reports more than its declared ideal allows, so samples that are not its own alone."""
    both = zip(
        values(ranks, "best_samples_per_second"), values(ranks, "ideal_samples_per_second"), strict=True
    )
    return any((best or 0.0) > (ideal or inf) for best, ideal in both)


def _samples_basis(
    reporters: Sequence[RankAccount],
    silent: Sequence[RankAccount],
    kept: float,
    ideal: float | None,
    basis: str,
) -> str | None:
    """Whose samples are summed: "each rank", "one rank" or "some ranks" of those that step, or "same on each rank".

    The last is the usual case of equal batches, but also that of the whole batch reported by each rank, whose sum is too large
    by their number: "whole batch on each rank" if the declared ideal rules out the first.
    """
    if not len(reporters):
        return None
    if len(silent):
        return "one rank" if len(reporters) == 1 else "some ranks"
    made = zip(values(reporters, "kept_samples"), values(reporters, "kept_steps"), strict=True)
    if len(reporters) < 2 or len(set(made)) > 1:
        return "each rank"
    is_whole = ideal is not None and basis == "given" and kept / len(reporters) <= ideal < kept
    return "whole batch on each rank" if is_whole else "same on each rank"


def _ideal(ranks: Sequence[RankAccount], name: str, shown: bool = False) -> float | None:
    """Samples that these ranks could have done in their wall time.

    With `shown` it is at least what each rank did: its last steps may be its fastest and too few for a stretch.
    """
    rates = _rates(ranks, name)
    columns = (values(ranks, one) for one in ("count", "wall_ns", "kept_samples")) if rates else ()
    ideals = [
        count * max(rate * wall_ns / 1e9, kept * shown)
        for rate, count, wall_ns, kept in zip(rates, *columns, strict=True)
    ]
    return sum(ideals) if ideals else None


def _rates(ranks: Sequence[RankAccount], name: str) -> list[float]:
    """A declared rate of each rank, the others' mean for a rank without one; empty if no rank declares it."""
    rates = values(ranks, name)
    declared = [rate for rate in rates if rate is not None]
    if not declared:
        return []
    usual = sum(declared) / len(declared)
    return [usual if rate is None else rate for rate in rates]


def pipeline(account: Account) -> Bubble | None:
    """The pipeline's bubble: the share of kept steps spent waiting, and the share that the schedule needs.

    For p stages and m microbatches (p - 1) / (m + p - 1) of a step is idle at best (Huang et al., "GPipe", 2019;
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021). None without stages.
    """
    stage, observed = account.of("stage"), account.of("observed")
    stages = 1 + max(
        (one for one, seen in zip(stage, observed, strict=True) if seen and one is not None), default=0
    )
    if stages < 2:
        return None
    kept = waited = 0
    counts = set()
    columns = map(account.of, ("kept_ns", "states", "devices", "microbatches"))
    for one, seen, kept_ns, states, devices, many in zip(stage, observed, *columns, strict=True):
        if seen and one is not None:
            kept += kept_ns * devices
            waited += sum(states[i] for i in _WAITING) * devices
            counts.add(many)
    micro = counts.pop() if len(counts) == 1 else None
    ideal = (stages - 1) / (micro + stages - 1) if micro else None
    bubble = waited / kept if kept else None
    return {
        "stages": stages,
        "microbatches": micro,
        "bubble": bubble,
        "ideal_bubble": ideal,
        "excess": None if bubble is None or ideal is None else bubble - ideal,
    }


def pipeline_waits(account: Account, microbatches: int | None) -> list[PipelineWait]:
    """How long ranks of each stage wait in sends and in receives: exposed time of these by kept steps."""
    return result_of(summing_pipeline_waits(account, microbatches))


def summing_pipeline_waits(account: Account, microbatches: int | None) -> Slices[list[PipelineWait]]:
    """As `pipeline_waits`, in slices."""
    spent: dict[tuple[int, str], int] = {}
    steps: dict[int, int] = {}
    columns = zip(*map(account.of, ("stage", "kept_steps", "exposed")), strict=True)
    for at, (stage, kept, exposed) in enumerate(columns):
        if at % AT_A_TIME == 0:
            yield
        if stage is None or not kept:
            continue
        steps[stage] = steps.get(stage, 0) + kept
        for (_, operation), row in operation_sums.of_rank(exposed).items():
            if operation in _POINT_TO_POINT and row.is_known:
                key = stage, operation
                spent[key] = spent.get(key, 0) + row.gpu_ns
    return [
        {
            "stage": stage,
            "operation": operation,
            "step_seconds": ns / 1e9 / steps[stage],
            "microbatch_seconds": ns / 1e9 / steps[stage] / microbatches if microbatches else None,
        }
        for (stage, operation), ns in sorted(spent.items())
    ]


def probed_bus(account: Account) -> float | None:
    """Bus bandwidth of an all-reduce over the run's ranks, as the median node reached it in `goodput probe`."""
    known = [rate for rate in account.of("reached_bus_bytes_per_second") if rate]
    return median_low(known) if known else None


def bus_ceilings(account: Account) -> Callable[[OperationTime], Ceiling | None]:
    """A function from an operation to the ceiling of its bus bandwidth."""
    probed, ranks = probed_bus(account), account.rank_count()
    return lambda row: bus_ceiling(row.size, row.local, row.link_rate, probed, ranks)


def money(account: Account) -> Total | None:
    """Dollars by state, None without a price. A rank without a price has the others' mean."""
    return _weighed(account, "gpu_hour_cost", 3.6e12)


def energy(account: Account) -> Total | None:
    """Joules by state; None where no energy was measured and no power declared.

    Measured energy of a rank is split over the states of the measured time in proportion. The rest is GPU-seconds times
    the declared mean power. Without one, unmeasured time of a process has the mean power of the measured time, and time
    without a process (_GONE) is None: unknown.
    """
    if not any(account.of("energy_mj")):
        return _weighed(account, "gpu_power_watts", 1e9)
    measured, metered_ns = account.of("energy_mj"), [sum(own) for own in account.of("metered")]
    lived_ns = sum(map(mul, metered_ns, account.of("devices")))
    shown = sum(measured) * 1e6 / lived_ns if lived_ns else None
    totals: list[float | None] = [0.0] * len(STATES)
    declared = _rates(account.ranks, "gpu_power_watts") or [None] * len(account.ranks)
    columns = map(account.of, ("states", "metered", "all_devices"))
    for watts, energy_mj, lived, states, metered, devices in zip(
        declared, measured, metered_ns, *columns, strict=True
    ):
        for i, ns in enumerate(states):
            rest_ns = ns - metered[i]
            power = shown if watts is None and i not in _GONE else watts
            joules = totals[i]
            if joules is None or (rest_ns and power is None):
                totals[i] = None
                continue
            if metered[i]:
                joules += energy_mj / 1e3 * (metered[i] / lived)
            if rest_ns and power is not None:
                joules += rest_ns * devices / 1e9 * power
            totals[i] = joules
    known = sum(joules for joules in totals if joules is not None)
    return {"total": known, "states": dict(zip(STATES, totals, strict=True))}


def energy_basis(account: Account) -> str:
    """ "measured" if no part of `energy` is an estimate, else "estimated"."""
    measured = any(account.of("energy_mj"))
    declared = any(watts is not None for watts in account.of("gpu_power_watts"))
    rest = any(
        ns > metered_ns and (declared or i not in _GONE)
        for states, metered in zip(account.of("states"), account.of("metered"), strict=True)
        for i, (ns, metered_ns) in enumerate(zip(states, metered, strict=True))
    )
    return "measured" if measured and not rest else "estimated"


def _weighed(account: Account, name: str, per_ns: float) -> Total | None:
    rates, totals = _rates(account.ranks, name), [0.0] * len(STATES)
    if not rates:
        return None
    alike: dict[float, list[int]] = {}
    # Nearly always all ranks have one rate, and the account keeps the sums of all.
    for at, rate in enumerate(rates) if rates.count(rates[0]) < len(rates) else ():
        alike.setdefault(rate, []).append(at)
    for rate, places in (alike or {rates[0]: []}).items():
        some = sum_gpu_ns(chosen(account.ranks, places)) if alike else account.gpu_ns()
        for i, ns in enumerate(some):
            totals[i] += ns / per_ns * rate
    return {"total": sum(totals), "states": dict(zip(STATES, totals, strict=True))}


def per_unit(account: Account, total: float | None) -> PerUnit | None:
    """Goodput per dollar or per joule: useful work for each unit of `total`; None without a total."""
    if not total:
        return None
    flops = [one for one in account.of("flops") if one is not None]
    samples = throughput(account)["samples"]
    return {
        "productive_gpu_seconds": account.gpu_ns()[_PRODUCTIVE] / 1e9 / total,
        "samples": samples / total if samples else None,
        "flops": sum(flops) / total if len(flops) == len(account.ranks) else None,
    }


def reached_efficiency(account: Account) -> float | None:
    """Model FLOPs / (peak reached in `goodput probe` x productive time); None unless all ranks with work were probed."""
    flops, most = 0.0, 0.0
    columns = (account.of(name) for name in ("productive_ns", "flops", "reached_flops_per_second", "count"))
    for spent_ns, done, reached, count in zip(*columns, strict=True):
        if not spent_ns:
            continue
        if done is None or reached is None:
            return None
        flops += done
        most += reached * spent_ns * count
    return flops * 1e9 / most if most else None


def device_copies(account: Account) -> DeviceCopies | None:
    """How fast traced steps copied to the device; of the rank farthest below what its node can do. None without one."""
    copying = [at for at, rate in enumerate(account.of("h2d_bytes_per_second")) if rate]
    traced = [
        (rank.h2d_bytes_per_second or 0.0, rank.reached_h2d_bytes_per_second, rank)
        for rank in chosen(account.ranks, copying)
    ]
    if not traced:
        return None
    probed = [(rate / reached, reached, rate, rank) for rate, reached, rank in traced if reached]
    if probed:
        ratio, reached, rate, rank = min(probed, key=lambda one: one[0])
    else:
        rate, _, rank = min(traced, key=lambda one: one[0])
        ratio = reached = None
    return {
        "ranks": len(traced),
        "rank": rank.rank,
        "host": rank.host,
        "h2d_bytes_per_second": rate,
        "reached_bytes_per_second": reached,
        "reached_ratio": ratio,
    }


def input_errors(account: Account, rate: Throughput | None = None) -> list[str]:
    """Declared values that cannot be right: a utilisation above 100 %, with the likely reason, or a low ideal.

    `rate` is the account's throughput, if it is at hand.
    """
    errors, rate = _utilisation_errors(account), rate or throughput(account)
    if rate["samples"] and rate["ideal_basis"] == "given" and rate["goodput"] is None:
        kept, ideal = (f"{rate[name]:,.4g}" for name in ("samples_per_second", "ideal_samples_per_second"))
        errors.append(
            f"{kept} samples per second are more than the ideal, {ideal}, so an input is wrong: "
            "ideal_samples_per_second is too low, or samples are more than this rank's; both are per rank."
        )
    return errors


def wrong_figures(account: Account, rate: Throughput | None = None) -> list[str]:
    """The figures that declared values make wrong: those of mfu, compute_efficiency and hfu above 1, and throughput."""
    rate = rate or throughput(account)
    found = [
        factor
        for factor in ("mfu", "compute_efficiency", "hfu")
        if too_high(account.raw_ratio(factor)) is not None
    ]
    is_above_ideal = rate["samples"] and rate["ideal_basis"] == "given" and rate["goodput"] is None
    return [*found, "throughput"] if is_above_ideal else found


def _utilisation_errors(account: Account) -> list[str]:
    """At most one error."""
    first = next((account.ranks[at] for at, seen in enumerate(account.of("observed")) if seen), None)
    about = {
        "world_size": account.rank_count(),
        "microbatches": (first.microbatches if first else None) or 1,
        "devices": first.devices if first else 1,
        "device": account.device,
        "dtype": first.dtype if first else "",
    }
    # If MFU is above 1 then so are the others; one message is enough.
    for name, factor in (("MFU", "mfu"), ("compute efficiency", "compute_efficiency"), ("HFU", "hfu")):
        # Phases on the host clock hardly contain a GPU's work; MFU does not depend on phases.
        text = too_high(account.raw_ratio(factor), name, **about, device_clock=account.device_share())
        if text is not None:
            return [text]
    return []


def mfu_unknown(account: Account) -> str | None:
    """Why MFU is unknown, in a sentence; None if it is known or an input is wrong."""
    if account.ratio("mfu") is not None or input_errors(account):
        return None
    observed = [rank for rank in account.ranks if rank.observed]
    if not observed:
        return "no rank has reported"
    if any(rank.flops is None for rank in observed):
        reason = next(
            (rank.flops_unknown for rank in observed if rank.flops is None and rank.flops_unknown), ""
        )
        because = f": {reason}" if reason else "; goodput.auto counts those of PyTorch models"
        return f"the FLOPs of a step are not known{because}. Give flops_per_step to goodput.start"
    if all(rank.peak is not None for rank in observed):
        return "nothing has run yet"
    if not account.device:
        return "the device is not known: give device and dtype, or peak_flops_per_second, to goodput.start"
    dtype = next((rank.dtype for rank in observed if rank.peak is None), "") or "an unknown dtype"
    return (
        f"no peak of {account.device} in {dtype} is known: give peak_flops_per_second to goodput.start. `goodput "
        "report` measures that of the CPU it runs on, while neither a training nor other work keeps it busy"
    )
