"""Waiting for the data loader."""

from goodput.account.states import INDEX

STATE = "loader"


def advise(account) -> str:
    """Says whether one rank waits or all do: a slow disk or node against too little loading everywhere."""
    waits = sorted((rank.states[INDEX[STATE]], rank.rank, rank.host) for rank in account.ranks)
    most, rank, host = waits[-1]
    if len(waits) > 1 and most > 3 * max(waits[len(waits) // 2 - 1][0], 1):
        return (
            f"Only rank {rank} on {host} waits for its loader: look at that node's disk, CPU and network, "
            "or at the shard it reads."
        )
    return (
        "All ranks wait for their loaders: more workers (num_workers, persistent_workers, prefetch_factor), "
        "cheaper decoding, or data on faster storage."
    )
