"""In the trainer: what `import goodput` runs there. It only writes to memory.

Rooms: recorder.py (the account of one thread), clock.py and _fast.c (its clock, twice), phase.py and steps.py (what
the user's `with` and `for` call), checkpoints.py, session.py (one recorder per process: start, fork, exit), who.py
(the identity), report.py (the process's own page as an account).
"""
