"""A real data-parallel training run on one machine, small enough for a laptop, with planted faults.

    run.py          the demo: server, agent and ranks as processes, and the faults as they really happened
    rank.py         one rank's training loop, instrumented with goodput
    view.py         the live view on the terminal
    text.py         the standard library's own source files -> token ids -> a rank's batch of a step
    model.py        a batch -> loss and gradient, in one flat vector; Adam; the default sizes
    allreduce.py    every rank's vector -> their mean, between the processes
    checkpoint.py   parameters and optimizer state <-> a file that a SIGKILL leaves whole
    peak.py         the FLOP/s that one core of this machine attains

The same seed gives the same run on the same machine. The files from text.py on do not import goodput.
"""
