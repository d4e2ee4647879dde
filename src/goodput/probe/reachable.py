"""Compute efficiency against what the run's nodes reached in `goodput probe`, beside the data sheet's."""

from __future__ import annotations

import math

from goodput.account.account import Account
from goodput.account.fold import PRODUCTIVE
from goodput.account.peaks import shares
from goodput.probe import kept


def compute_efficiency(account: Account) -> float | None:
    """Model FLOPs / (reached peak x productive time), as the account's factor against the nominal peak.

    None unless FLOPs are known and each node with productive time has a kept probe of its device and dtype.
    """
    flops, most = 0.0, 0.0
    probes: dict[str, dict | None] = {}
    for rank in account.ranks:
        spent_ns = rank.states[PRODUCTIVE]
        if not spent_ns:
            continue
        if rank.host not in probes:
            probes[rank.host] = kept.load(rank.host)
        reached = peak(probes[rank.host], rank.dtype, account.device)
        if rank.flops is None or reached is None:
            return None
        flops += rank.flops
        most += reached * rank.devices * rank.count * spent_ns / 1e9
    return flops / most if most else None


def peak(probe: dict | None, dtype: str, device: str) -> float | None:
    """FLOP/s of one device in a dtype, as a rank declares it; of shares the harmonic mean, as times at the peaks add up."""
    try:
        parts = shares(dtype)
    except ValueError:
        return None
    rates = {part: kept.value(probe, f"gemm_{part}", device) for part in parts}
    seconds = [share / rate for part, share in parts.items() if (rate := rates[part])]
    return 1 / math.fsum(seconds) if len(seconds) == len(parts) else None
