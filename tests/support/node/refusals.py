"""Requests denied by the agent's server, by reason."""

from support.node.node_tree import samples

from goodput.metrics import Families
from goodput_exporters.server.authentication import NodeAuthenticator


def refused(authenticator: NodeAuthenticator) -> dict[str, float]:
    families = Families("node")
    authenticator.collect(families)
    return {key[1][0]: value for key, value in samples(families).items() if key[0].endswith("refused_total")}
