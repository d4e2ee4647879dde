"""Waiting for the data loader."""

from statistics import median

from goodput.account.states import INDEX
from goodput.account.text import on

STATE = "loader"
# A rank that waits for its loader this many times as long as the median of the others is the one to look at.
ALONE_RATIO_MIN = 2


def advise(account) -> str:
    """Says whether one rank waits or all do: a slow disk or node against too little loading everywhere."""
    waits = sorted((rank.states[INDEX[STATE]], rank.rank, rank.host) for rank in account.ranks)
    most, rank, host = waits.pop()
    if waits and most > ALONE_RATIO_MIN * median(ns for ns, _, _ in waits):
        return (
            f"Rank {rank}{on(host)} waits for its loader much longer than the others: look at that node's disk, "
            "CPU and network, or at the shard it reads."
        )
    return (
        "All ranks wait for their loaders: more workers (num_workers, persistent_workers, prefetch_factor), "
        "cheaper decoding, or data on faster storage."
    )
