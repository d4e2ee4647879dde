"""What the run's nodes reached in `goodput probe`: matrix products, beside the data sheet's peak, and all-reduces."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from goodput.account.account import Account
from goodput.account.mfu.peaks import shares
from goodput.account.states import PRODUCTIVE
from goodput.probe import kept

_RANKS = re.compile(r"(\d+) ranks")


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


def bus(probe: dict | None, ranks: int) -> float | None:
    """The best bus bandwidth of an all-reduce over at least so many ranks, bytes a second; None where none was probed.

    With fewer ranks than the run's a probe may not have crossed the links that the run crosses.
    """
    found = [
        figure["value"]
        for figure in (probe["figures"] if probe else ())
        if figure["name"].startswith("all_reduce_")
        and figure["value"]
        and (over := _RANKS.match(figure["device"]))
        and int(over[1][:9]) >= ranks
    ]
    return max(found, default=None)


def add_reached(account: Account, traced: Mapping[int, tuple[float | None, str]]) -> None:
    """Give ranks without an agent what was kept of a probe on their node, and how fast they copied.

    `traced` has by rank the bytes a second of copies in its last traced step, and to which device.
    """
    probes = {rank.host: None for rank in account.ranks}
    probes |= {host: kept.load(host) for host in probes}
    for rank in account.ranks:
        if rank.reached_bus_bytes_per_second is None:
            rank.reached_bus_bytes_per_second = bus(probes[rank.host], account.rank_count())
        rate, device = traced.get(rank.rank, (None, ""))
        if rate is not None and rank.h2d_bytes_per_second is None:
            reached = kept.value(probes[rank.host], "h2d_pinned", device) if device else None
            rank.h2d_bytes_per_second, rank.reached_h2d_bytes_per_second = rate, reached
