"""Whether the stack reports the truth of a simulated cluster.

cluster.py         the node agents: pushes, and what becomes of them
own_aggregator.py  an aggregator on a simulated clock
stack.py           a client of the stack
simulation.py      a scenario played against it
comparison.py      what it reported, compared with the truth
"""
