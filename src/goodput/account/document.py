"""The account document: the one JSON shape of an account, wherever it appears.

In: an Account and the causes that causes/ found in it. Out: a dictionary of plain values; GPU-seconds are floats,
what is unknown is None, lists are sorted by rank or by weight.
"""

from __future__ import annotations

from goodput.account.account import FACTORS, Account, RankAccount
from goodput.account.states import INDEX, STATES


def document(account: Account, causes: list[dict] | None = None) -> dict:
    """The account as a JSON-ready dictionary."""
    gpu_ns = account.gpu_ns()
    return {
        "run": account.run,
        "status": account.status,
        "start": account.start_ns / 1e9,
        "end": account.end_ns / 1e9,
        "world_size": account.world_size,
        "gpu_seconds": account.wall_gpu_ns() / 1e9,
        "states": _states(gpu_ns),
        "factors": {factor: account.ratio(factor) for factor in FACTORS},
        "coverage": {"ranks": _coverage(account, gpu_ns), "device_clock": 0.0},
        "steps": {
            "kept": sum(rank.kept_steps for rank in account.ranks),
            "lost": sum(rank.lost_steps for rank in account.ranks),
        },
        "samples": account.samples,
        "restarts": [_restart(restart) for restart in account.restarts],
        "straggler": _straggler(account),
        "hang": None,
        "causes": causes or [],
        "ranks": [_rank(rank) for rank in account.ranks],
    }


def _states(ns: list[int]) -> dict[str, float]:
    return {state: ns[i] / 1e9 for i, state in enumerate(STATES)}


def _coverage(account: Account, gpu_ns: list[int]) -> float | None:
    wall = account.wall_gpu_ns()
    return 1 - gpu_ns[INDEX["unobserved"]] / wall if wall else None


def _restart(restart) -> dict:
    return {
        "attempt": restart.attempt,
        "time": restart.time_ns / 1e9,
        # Per GPU, so that it reads as the length of the pause.
        "down_seconds": restart.down_gpu_ns / restart.devices / 1e9 if restart.devices else None,
        "lost_steps": restart.lost_steps,
        "lost_gpu_seconds": restart.lost_gpu_ns / 1e9,
        "resume_step": restart.resume_step,
    }


def _straggler(account: Account) -> dict:
    hosts = {rank.rank: rank.host for rank in account.ranks}
    culprit = account.straggler.culprit()
    return {
        "slowdown": account.straggler.slowdown(),
        "culprit": culprit[0] if culprit else None,
        "because": culprit[1] if culprit else None,
        "shares": [
            {"rank": rank, "host": hosts.get(rank, ""), "share": share}
            for rank, share in account.straggler.shares()
        ],
    }


def _rank(rank: RankAccount) -> dict:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "devices": rank.devices,
        "states": _states([ns * rank.devices for ns in rank.states]),
        "steps": {"kept": rank.kept_steps, "lost": rank.lost_steps},
    }
