"""Waiting in collectives for a slower rank."""

STATE = "straggler"

_BECAUSE = {
    "loader": "its loader is slow: look at that node's disk, CPU and network, or at the shard it reads",
    "h2d": "its copies to the device are slow: look at pinned memory and the PCIe link of that node",
    "productive": "its computing is slow: look for throttling, a degraded GPU or uneven work on that node",
    "checkpoint": "it alone saves checkpoints: save asynchronously or from all ranks",
    "evaluation": "it alone evaluates: evaluate on all ranks or in a job of its own",
    "unattributed": "it spends time in no phase: name that time with goodput.phase(...)",
}


def advise(account) -> str:
    culprit = account.straggler.culprit()
    if culprit is None:
        return (
            "No single rank is slow: ranks take turns at being last. Look for uneven batches, noisy neighbours "
            "or too few CPU cores per rank."
        )
    rank, state = culprit
    host = next((r.host for r in account.ranks if r.rank == rank), "")
    share = dict(account.straggler.shares()).get(rank, 0.0)
    because = _BECAUSE.get(state, f"it spends longer in {state}")
    return f"{100 * share:.0f} % of it is waiting for rank {rank} on {host}: {because}."
