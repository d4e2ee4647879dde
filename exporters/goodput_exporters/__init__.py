"""The node agent: reads the node's rank pages and counters, serves `/metrics`, pushes one report per node.

agent = Agent("/run/goodput", aggregator="http://127.0.0.1:9471")
server = Server(agent.exposition, agent.health, ("127.0.0.1", 0))
agent.start(); server.start(); ...; server.stop(); agent.stop()
"""

import sys

# msgspec imports it, where it is installed, for features of `typing` that Python 3.11 has: 0.6 MiB of each process.
_is_hidden = (
    sys.version_info >= (3, 11) and sys.modules.setdefault("typing_extensions", None) is None  # pyright: ignore[reportArgumentType]
)
try:
    import msgspec  # noqa: F401
finally:
    if _is_hidden:
        del sys.modules["typing_extensions"]
