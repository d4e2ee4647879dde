"""Whether the stack says the truth of a simulated cluster.

cluster.py         the node agents: pushes, and what becomes of them
own_aggregator.py  an aggregator on a simulated clock
stack.py           what is asked of it
simulation.py      a scenario played against it
comparison.py      what it said, compared with the truth
"""
