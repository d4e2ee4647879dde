"""The series that a collector adds."""

from support.node.node_tree import samples

from goodput.metrics import Families

MS = 1_000_000


def collected(collector) -> dict:
    families = Families("node")
    collector.collect(families)
    return samples(families)
