"""Automatic instrumentation: step detection, loader statistics, checkpoints and the overhead budget."""
