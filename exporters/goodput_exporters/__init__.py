"""The node agent: reads the node's rank pages and counters, serves `/metrics`, pushes one report per node.

agent = Agent("/run/goodput", aggregator="http://127.0.0.1:9471")
server = Server(agent.exposition, agent.health, ("127.0.0.1", 0))
agent.start(); server.start(); ...; server.stop(); agent.stop()
"""
