"""Requests refused by the agent's server, by reason."""

from support.node.node_tree import collect

from goodput_exporters.server.authentication import NodeAuthenticator


def refused(authenticator: NodeAuthenticator) -> dict[str, float]:
    found = collect(authenticator)
    return {labels[0]: value for (name, labels), value in found.items() if name.endswith("refused_total")}
