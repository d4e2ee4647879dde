"""The account document: the one JSON shape of an account, wherever it appears.

GPU-seconds are floats, what is unknown is None, lists are sorted by rank or by weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from goodput.account import figures, sampled_stacks
from goodput.account.account import FACTORS, Account
from goodput.account.collectives import operation_sums
from goodput.account.collectives.bandwidth import Ceiling, bus_factor
from goodput.account.collectives.document_types import (
    BusBandwidth,
    CollectiveTime,
    OperationTime,
    RankCollectives,
    RankOperations,
)
from goodput.account.collectives.slow_link import slow_link_document
from goodput.account.document_types import (
    AccountDocument,
    Cause,
    Factors,
    Failure,
    MovedClock,
    Pipeline,
    Rank,
    Restart,
    Role,
    SlowIssue,
    Straggler,
    Total,
    UnseenRanks,
)
from goodput.account.ranks import RankAccount, chosen, sum_gpu_ns, values
from goodput.account.states import INDEX, STATES
from goodput.account.text.answer import answer
from goodput.wire.operation_row import UNKNOWN

# Unreported ranks that are listed one by one.
UNSEEN_LISTED_MAX = 256


def document(account: Account, causes: list[Cause] | None = None) -> AccountDocument:
    """The account as a JSON-ready dictionary."""
    gpu_ns, wall = account.gpu_ns(), account.wall_gpu_ns()
    dollars, joules = figures.money(account), figures.energy(account)
    roles = account.by_role()
    listed, unseen = _ranks(account, bool(roles))
    reached = figures.reached_efficiency(account)
    found: dict[str, Any] = {
        "run": account.run,
        "status": account.status,
        "start": account.start_ns / 1e9,
        "end": account.end_ns / 1e9,
        "world_size": account.world_size,
        "is_on_cpu": account.is_on_cpu,
        "ranks_elsewhere": account.ranks_elsewhere,
        "gpu_seconds": wall / 1e9,
        "states": _states(gpu_ns),
        "factors": Factors(**{factor: account.ratio(factor) for factor in FACTORS}),
        "reachable": None if reached is None else {"compute_efficiency": reached},
        "device_copies": figures.device_copies(account),
        "coverage": {
            "ranks": sum(account.of("observed")) / account.rank_count() if len(account.ranks) else None,
            "time": 1 - gpu_ns[INDEX["unobserved"]] / wall if wall else None,
            "device_clock": account.device_share(),
            "phases": account.phases_share(),
            "compared": account.straggler.compared_share(),
        },
        "steps": {
            "kept": sum(account.of("kept_steps")),
            "lost": sum(account.of("lost_steps")),
        },
        "phases": figures.compute_phases(account),
        "startup_evaluation_gpu_seconds": _seconds(figures.early_evaluation_ns(account)),
        "samples": account.samples,
        "stall_threshold_seconds": account.threshold_ns / 1e9,
        "errors": figures.input_errors(account),
        "wrong_figures": figures.wrong_figures(account),
        "step_lines": account.step_lines,
        "moved_clocks": [
            MovedClock(host=host, seconds=one) for host, own in account.moved_clocks.items() for one in own
        ],
        "mfu_unknown": figures.mfu_unknown(account),
        "basis": _basis(account, joules),
        "restarts": [_restart(restart, account.gpu_hour_cost()) for restart in account.restarts],
        "checkpoints": figures.checkpoints(account),
        "throughput": figures.throughput(account),
        "pipeline": _pipeline(account),
        "cost": dollars,
        "energy": joules,
        "per_dollar": figures.per_unit(account, dollars and dollars["total"]),
        "per_joule": figures.per_unit(account, joules and joules["total"]),
        "straggler": _straggler(account),
        "workers": {"counted": account.rank_count(), "left_out": account.left_out}
        if account.is_of_workers
        else None,
        "roles": [_role(role, part) for role, part in roles.items()],
        "failure": _failure(account),
        "hang": None,
        "causes": causes or [],
        "advice_order": figures.advice_order(account, causes or []),
        "whole_run": figures.whole_run(account),
        "stack_samples": sampled_stacks.summary(account),
        "collectives": collectives(account),
        "ranks": listed,
        "unseen_ranks": unseen,
    }
    return cast("AccountDocument", {**found, "answer": answer(found)})


def _failure(account: Account) -> Failure | None:
    if account.failed is None:
        return None
    attempt, failure = account.failed
    step, committed = failure.step if failure.step >= 0 else None, account.committed_step
    since = None if step is None or committed is None else max(step - 1 - committed, 0)
    return {
        "rank": attempt.rank,
        "host": attempt.host,
        "step": step,
        "text": failure.text,
        "committed_step": committed,
        "steps_since_checkpoint": since,
    }


def _ranks(account: Account, has_roles: bool) -> tuple[list[Rank], list[UnseenRanks]]:
    """The ranks one by one, and as ranges what is beyond UNSEEN_LISTED_MAX unreported ranks."""
    listed: list[Rank] = []
    more: list[UnseenRanks] = []
    left = UNSEEN_LISTED_MAX
    for rank in account.ranks:
        role = rank.role_name if has_roles else rank.role
        count = rank.count if rank.observed else min(rank.count, left)
        left -= 0 if rank.observed else count
        listed += [_rank(rank, rank.rank + at, role) for at in range(count)]
        if count < rank.count:
            more.append(_rank_range(rank, rank.rank + count, rank.count - count))
    return listed, more


def _rank_range(rank: RankAccount, first: int, count: int) -> UnseenRanks:
    return {
        "first": first,
        "last": first + count - 1,
        "ranks": count,
        "devices": rank.devices,
        "states": _states([ns * rank.devices * count for ns in rank.states]),
    }


def _role(role: str, ranks: Sequence[RankAccount]) -> Role:
    gpu_ns = sum_gpu_ns(ranks)
    total = sum(gpu_ns)
    kept, lost = (sum(values(ranks, name)) for name in ("kept_steps", "lost_steps"))
    return {
        "role": role,
        "ranks": sum(values(ranks, "count")),
        "gpu_seconds": total / 1e9,
        "states": _states(gpu_ns),
        "steps": {"kept": kept, "lost": lost},
        "goodput": gpu_ns[INDEX["productive"]] / total if total else None,
    }


def _states(ns: list[int]) -> dict[str, float]:
    return {state: ns[i] / 1e9 for i, state in enumerate(STATES)}


def _basis(account: Account, joules: Total | None) -> dict[str, str]:
    """Which figures are measured, estimated or unknown."""
    known = {factor: account.ratio(factor) is not None for factor in FACTORS}
    # A run log may have `launch` as a phase, without samples.
    launch = any(account.of("sampled")) or account.gpu_ns()[INDEX["launch"]] > 0
    pipe = figures.pipeline(account)
    guessed = any(account.of("guessed_loader")) and any(
        rank.guessed_loader and rank.states[INDEX["loader"]] for rank in account.ranks
    )
    by_hand = any(account.of("guessed_update")) and any(
        rank.guessed_update and rank.states[INDEX["productive"]] for rank in account.ranks
    )
    return {
        "states": "measured",
        "productive": "estimated" if by_hand else "measured",
        "loader": "estimated" if guessed else "measured",
        "compile": "estimated",
        "bubble": "estimated" if pipe and pipe["ideal_bubble"] is not None else "unknown",
        "launch": "estimated" if launch else "unknown",
        **{factor: "measured" if known[factor] else "unknown" for factor in FACTORS},
        "slowdown": "unknown" if account.straggler.slowdown() is None else "estimated",
        "energy": figures.energy_basis(account) if joules else "unknown",
        "whole_run": "unknown" if figures.whole_run(account) is None else "estimated",
        "collectives": operation_sums.basis(account.of("exposed"), account.of("device_ns")),
        "collective_skew": operation_sums.skew_basis(account.operations),
    }


def rank_collectives(account: Account, limit: int, offset: int) -> RankCollectives:
    """Each rank's exposed communication by process group and operation, of at most `limit` ranks from `offset` on."""
    exposed = account.of("exposed")
    waited = [at for at, own in enumerate(exposed) if any(one.ns for one in own)]
    shown = chosen(account.ranks, waited[offset : offset + limit])
    return {
        "run": account.run,
        "basis": operation_sums.basis(exposed, account.of("device_ns")),
        "total": len(waited),
        "ranks": [_rank_operations(rank, account) for rank in shown],
    }


def _rank_operations(rank: RankAccount, account: Account) -> RankOperations:
    rows = operation_sums.largest(operation_sums.of_rank(rank.exposed, account.least_waits))
    communication, straggler, bubble = (rank.states[INDEX[state]] for state in operation_sums.STATES)
    operations: list[OperationTime] = [
        {
            "group": group,
            "operation": operation,
            "calls": row.calls if operation and not account.is_part else None,
            "bytes": row.bytes if operation and not account.is_part else None,
            "ns": row.gpu_ns if row.is_known else None,
            "skew_ns": row.skew_ns if row.is_known else None,
            "transfer_ns": row.transfer_ns if row.is_known else None,
            "device_ns": _whole(row.device_ns, account),
            "hidden_ns": _whole(row.hidden_ns, account),
            "hidden_max_ns": _whole(row.hidden_max_ns, account),
        }
        for (group, operation), row in rows
    ]
    return {
        "rank": rank.rank,
        "host": rank.host,
        "communication_ns": communication,
        "straggler_ns": straggler,
        "bubble_ns": bubble,
        "operations": operations,
    }


def _whole(ns: int, account: Account) -> int | None:
    """None if it is not known, as in a part of the run's time: pages have it of whole processes."""
    return None if ns == UNKNOWN or account.is_part else ns


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def collectives(account: Account) -> list[CollectiveTime]:
    """The operations with most exposed time, and the rest in at most two rows."""
    ceiling_of = figures.bus_ceilings(account)
    return [
        {
            "group": group,
            "operation": operation,
            "ranks": row.ranks,
            "group_size": row.size or None,
            "calls": row.calls if operation and not account.is_part else None,
            "bytes": row.bytes if operation and not account.is_part else None,
            **_bus(operation, row, account, ceiling_of),
            "gpu_seconds": row.gpu_ns / 1e9 if row.is_known else None,
            "skew_gpu_seconds": row.skew_ns / 1e9 if row.is_known else None,
            "transfer_gpu_seconds": row.transfer_ns / 1e9 if row.is_known else None,
            "device_gpu_seconds": _seconds(_whole(row.device_ns, account)),
            "hidden_gpu_seconds": _seconds(_whole(row.hidden_ns, account)),
            "hidden_gpu_seconds_max": _seconds(_whole(row.hidden_max_ns, account)),
        }
        for (group, operation), row in operation_sums.largest(account.operations)
    ]


def _bus(
    operation: str,
    row: operation_sums.OperationTime,
    account: Account,
    ceiling_of: Callable[[operation_sums.OperationTime], Ceiling | None],
) -> BusBandwidth:
    """What the links carried at most and at least, and the ceiling of that; all None in a part of the run's time."""
    most = None if account.is_part else operation_sums.bus_rate_max(operation, row)
    least = None if account.is_part else operation_sums.bus_rate_min(operation, row)
    ceiling = None if most is least is None else ceiling_of(row)
    return {
        "algorithm_bytes_per_second_max": most / bus_factor(operation, row.size) if most else most,
        "algorithm_bytes_per_second_min": least / bus_factor(operation, row.size) if least else least,
        "bus_bytes_per_second_max": most,
        "bus_bytes_per_second_min": least,
        "bus_ceiling_bytes_per_second": ceiling.bytes_per_second if ceiling else None,
        "bus_ceiling_source": ceiling.source if ceiling else None,
    }


def _pipeline(account: Account) -> Pipeline | None:
    found = figures.pipeline(account)
    if found is None:
        return None
    return {**found, "waits": figures.pipeline_waits(account, found["microbatches"])}


def _restart(restart, price: float | None) -> Restart:
    gpu_ns = restart.gpu_ns()
    return {
        "attempt": restart.attempt,
        "time": restart.time_ns / 1e9,
        # Per GPU, so that it is the length of the pause.
        "down_seconds": restart.down_gpu_ns / restart.devices / 1e9 if restart.devices else None,
        "lost_steps": restart.lost_steps,
        "lost_gpu_seconds": restart.lost_gpu_ns / 1e9,
        "resume_step": restart.resume_step,
        "startup_gpu_seconds": restart.startup_gpu_ns / 1e9,
        "gpu_seconds": gpu_ns / 1e9,
        "cost": None if price is None else gpu_ns / 3.6e12 * price,
    }


def _straggler(account: Account) -> Straggler:
    hosts = account.hosts()
    culprit = account.straggler.culprit()
    return {
        "slowdown": account.straggler.slowdown(),
        "culprit": culprit[0] if culprit else None,
        "because": culprit[1] if culprit else None,
        "because_phase": account.straggler.because_phase(),
        "culprit_stage": account.straggler.culprit_stage(),
        "stage_because_phase": account.straggler.stage_because_phase(),
        "shares": [
            {"rank": rank, "host": hosts.get(rank, ""), "share": share}
            for rank, share in account.straggler.shares()
        ],
        "hosts": [{"host": host, "share": share} for host, share in account.straggler.host_shares()],
        "stages": [{"stage": stage, "share": share} for stage, share in account.straggler.stage_shares()],
        "since_step": account.straggler.since(culprit[0]) if culprit else None,
        "since_start": account.straggler.since_start(culprit[0]) if culprit else False,
        "onsets": [
            {
                "rank": rank,
                "attempt": attempt,
                "first_step": stretch.first,
                "last_step": stretch.last,
                "from_start": account.straggler.is_from_start((rank, attempt), stretch.first),
            }
            for (rank, attempt), onset in sorted(account.straggler.onsets.items())
            for stretch in onset.stretches
        ],
        "slow_issue": slow_issue(account),
        "slow_link": slow_link_document(account.slow_link) if account.slow_link else None,
    }


def slow_issue(account: Account) -> SlowIssue | None:
    """Whose calls of which collective are slow."""
    found = account.slow_issue
    if found is None:
        return None
    return {
        "rank": found.rank,
        "host": account.hosts()[found.rank],
        "group": found.group,
        "operation": found.operation,
        "seconds": found.issue_ns / 1e9,
        "usual_seconds": found.usual_ns / 1e9,
    }


def _rank(rank: RankAccount, number: int, role: str) -> Rank:
    return {
        "rank": number,
        "host": rank.host,
        "worker": rank.worker,
        "role": role,
        "stage": rank.stage,
        "devices": rank.devices,
        "states": _states([ns * rank.devices for ns in rank.states]),
        "steps": {"kept": rank.kept_steps, "lost": rank.lost_steps},
    }
