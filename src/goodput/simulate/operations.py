"""What simulated ranks have spent in each operation of each process group: sharded data parallelism."""

from __future__ import annotations

from goodput.wire.collectives import ReportedOperation

# Share of the time in communication, calls a step, and bytes of each.
OPERATIONS = {
    ("mesh_dp", "reduce_scatter"): (0.6, 12, 50_000_000),
    ("mesh_dp", "all_gather"): (0.37, 24, 25_000_000),
    ("default_pg", "all_reduce"): (0.03, 1, 8),
}
# Of the time in communication, what each hides behind compute, at least and at most.
LOCAL_RANKS, LINK_RATE = 8, 8 * 50_000_000_000  # of a node, with eight ports of 400 Gb/s
HIDDEN = {"reduce_scatter": (0.4, 0.5), "all_gather": (0.8, 1.1), "all_reduce": (0, 0)}


def rows(communication_ns: int, steps: int, ranks: int = 0) -> tuple[ReportedOperation, ...]:
    """The rows of one of `ranks` ranks that has spent `communication_ns` in `steps` steps."""
    return tuple(
        ReportedOperation(
            *names,
            *(calls * steps, size * calls * steps, int(share * communication_ns), 0, 0, ranks),
            *(int(part * communication_ns) for part in HIDDEN[names[1]]),
            local=min(ranks, LOCAL_RANKS),
            link_rate=LINK_RATE if ranks > LOCAL_RANKS else 0,
            device_ns=int((share + HIDDEN[names[1]][1]) * communication_ns),
            device_bytes=size * calls * steps,
        )
        for names, (share, calls, size) in OPERATIONS.items()
    )
