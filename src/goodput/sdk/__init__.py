"""In the trainer: what `import goodput` and `import goodput.auto` run there. It only writes to memory.

By hand: recorder.py (the account of one thread), clock.py and _fast.c (its clock, twice), phase.py and steps.py (what
the user's `with` and `for` call), checkpoints.py, report.py and window.py (what a process says of itself).
The process: session.py (one recorder per process: start, fork, exit), who.py (the identity), later.py, told.py and
move.py (what is known of it later), device.py and device_torch.py (the device clock).
Automatically: automatic.py (steps and evaluation, from what a framework calls), roots.py, saves.py, hooks.py and
_hooks.c (what runs in every step), patch.py and watch.py (replacing attributes, once their module is there), patches/
(one file for each thing), training.py (trainers that say where they are), worker.py and loads.py (inside the loader),
budget.py (the overhead), deep_look.py and look_child.py (a step traced now and then), sizes.py (FLOPs of transformers).
"""
