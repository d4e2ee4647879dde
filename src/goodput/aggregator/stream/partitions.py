"""Which partition a run belongs to, and the subjects of the stream.

Every process of one installation must agree on the number of partitions, so it is part of the subjects.
"""

from __future__ import annotations

import hashlib

PARTITIONS, PARTITIONS_MAX = 16, 256
# Subjects of core NATS: heartbeats of aggregators (members.py), and their answers to ingest workers.
MEMBERS, ANSWERS = "goodput.members", "goodput.answers"


def partition_of(run: str, count: int) -> int:
    """The partition of a run, 0 to `count` - 1: the same in every process and version."""
    digest = hashlib.blake2b(run.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count


def partition_of_node(node: str, count: int) -> int:
    """The partition of what a node reports that belongs to no run."""
    return partition_of(f"node {node}", count)


def pushes(count: int, partition: int | str) -> str:
    """The subject of the pushes of one partition, or with `*` of all."""
    return f"goodput.pushes.{count}.{partition}"


def reads_of(member: str) -> str:
    """The subject on which one aggregator answers requests that others forward."""
    return f"goodput.reads.{member}"
