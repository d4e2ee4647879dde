"""GPUs: one folder per driver, and the child processes in which drivers run."""
