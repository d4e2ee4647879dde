"""The series of a rank that NCCL's profiler plugin has recorded: calls, device time, transfers. About 0.2 ms a scrape."""

from __future__ import annotations

from collections import Counter

from goodput_exporters.collectors.ranks.rank import Rank

# By the fields of collective_records.Network: direction, what it is a sum of.
_WAITS = (
    ("send", "gpu", "send_gpu_ns"),
    ("send", "peer", "send_peer_ns"),
    ("send", "network", "send_network_ns"),
    ("receive", "network", "receive_network_ns"),
    ("receive", "gpu", "receive_gpu_ns"),
)


def add_nccl(families, rank: Rank) -> None:
    """Add the sums over all communicators. Raises PageError for an invalid file."""
    found = rank.plugin.collectives(since=(1 << 62) - 1) if rank.plugin is not None else None
    if found is None:
        return
    of_rank = {"run": rank.identity.run, "rank": str(rank.identity.rank)}
    calls, size, device_ns = Counter[str](), Counter[str](), Counter[str]()
    for one in found.sums:
        calls[one.operation] += one.calls
        size[one.operation] += one.bytes
        device_ns[one.operation] += one.device_ns
    for operation in sorted(calls):
        labels = {**of_rank, "operation": operation}
        families.add("goodput_nccl_calls_total", labels, calls[operation])
        families.add("goodput_nccl_bytes_total", labels, size[operation])
        families.add("goodput_nccl_device_seconds_total", labels, device_ns[operation] / 1e9)
    for direction in ("send", "receive"):
        transferred = sum(getattr(one, f"{direction}_bytes") for one in found.network)
        families.add("goodput_nccl_network_bytes_total", {**of_rank, "direction": direction}, transferred)
    for direction, reason, field in _WAITS:
        ns = sum(getattr(one, field) for one in found.network)
        labels = {**of_rank, "direction": direction, "reason": reason}
        families.add("goodput_nccl_network_wait_seconds_total", labels, ns / 1e9)
    for what, count in (("call", found.dropped), ("event", found.lost)):
        families.add("goodput_nccl_dropped_total", {**of_rank, "what": what}, count)
