"""A run as one Perfetto trace: all ranks on one time axis, aligned through their collectives; `goodput export --perfetto`."""
