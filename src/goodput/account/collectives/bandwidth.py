"""Algorithm and bus bandwidth of collectives as nccl-tests define them.

https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: the algorithm bandwidth is the size of the operation
over its time; the bus bandwidth is that times a factor by which it can be compared with a link's rate, whatever the
number of ranks.
"""

from __future__ import annotations

# Operations whose bytes, a rank's part as in a record, are one of `ranks` equal parts of the size.
_PARTS = frozenset(("all_gather", "reduce_scatter", "gather", "scatter"))
_WHOLE = frozenset(("all_reduce", "broadcast", "reduce", "all_to_all", "send", "recv"))


def operation_bytes(operation: str, ranks: int, part_bytes: int) -> int | None:
    """The size of nccl-tests for a rank's part: what it puts in, of scatter, recv and reduce_scatter what it gets.

    None for an operation without a size, such as a barrier.
    """
    if operation in _PARTS:
        return part_bytes * ranks
    return part_bytes if operation in _WHOLE else None


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth; 0 in a group of one, in which nothing is sent."""
    if ranks < 2:
        return 0.0
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in _PARTS or operation == "all_to_all":
        return (ranks - 1) / ranks
    return 1.0
