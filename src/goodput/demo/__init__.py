"""A real data-parallel training run on one machine, small enough for a laptop, for goodput to watch.

What comes in and goes out, by file:

    text.py         the standard library's own source files -> token ids -> this rank's batch of a step
    model.py        a batch -> loss and gradient, in one flat vector; Adam; the default sizes
    allreduce.py    every rank's vector -> their mean, over TCP between the processes
    checkpoint.py   parameters and optimizer state <-> files that survive a SIGKILL
    peak.py         the FLOP/s one core of this machine attains

Guarantee: work, waiting, loss and recovery are real. Batches, gradients, messages and checkpoints are
what a training run has, only smaller, and the same seed gives the same run on the same machine.

None of these files knows goodput: they hold the training alone, and what measures it is written on top.
"""
