"""`goodput probe loader`: the rate of a DataLoader by its settings, and what limits it.

`target` finds the loader, `variants` makes the same loader with other settings, `worker_times` and `waits` see what
its workers do, `sweep` measures rates and chooses what to measure next, `limit` names the limit, `probe` does it all.
"""
