"""In the trainer: what `import goodput` runs there. It only writes to memory.

Rooms: recorder.py (the account of one thread), phase.py and steps.py (what the user's `with` and `for` call),
session.py (one recorder per process: start, fork, exit), report.py (the process's own page as an account).
"""
