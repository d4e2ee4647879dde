"""`goodput up`: the whole stack on one machine, as child processes with the shipped configuration.

`files` finds that configuration and writes it for the ports at hand, `parts` says how each server is started and
asked, `stack` starts them, waits, watches and ends them. Standard library only.
"""
