"""Defaults that the commands and what they call share. Importing this costs nothing, so that `--help` stays quick."""

STALL_SECONDS = 60.0  # the shortest stall: see _core/history.c
STALE_SECONDS = 30.0  # a rank without a report for this long is unobserved
ABANDONED_SECONDS = 86_400.0  # a run without a sign of life for this long is abandoned
START_DAYS_MAX = 7.0  # so long ago a rank's process may have begun that an aggregator did not know

# A phase that automatic instrumentation defines: time before a forward pass where no loader is known. Making the batch,
# logging and anything else that the loop does there look the same from inside.
BEFORE_FORWARD = "before_forward"
# The same time in recordings of earlier versions, which took it for the making of the batch.
ESTIMATED_LOADER = "loader_estimated"
# A phase: a pass over the parameters that is taken to be their update, where there is no optimizer.
ESTIMATED_OPTIMIZER = "optimizer_estimated"
# The same, of state startup: a rank waits until all ranks of its process group have started.
PEERS = "init_process_group"

# How goodput.flops.cpu_peak names a CPU as a rank's device: the model, then the threads.
CPU_NAME = r".*, (\d{1,4}) threads?$"

# Why the FLOPs of a step are not known while a child process counts them.
FLOPS_NOT_SEEN = "goodput.auto counts them after the first step of a PyTorch model, and has seen no such step"
FLOPS_COUNTING = "a child process is counting them, or was when the training ended"
# Days after a run's end for which the ledger keeps each of its steps, and then a row a minute.
KEEP_STEPS_DAYS = 7.0
KEEP_MINUTES_DAYS = 90.0
# A cause of which less than this share of the whole run can be avoided comes after those that cannot.
AVOIDABLE_SHARE_MIN = 0.01
