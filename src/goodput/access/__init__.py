"""Who may do what over the network: tokens, their file, and where one may listen.

In: a token file, certificates, what a request brings. Out: an Access, or Denied with one word why. The aggregator and
the node agent both ask here. The standard library alone; it knows no HTTP framework and no run.
"""
