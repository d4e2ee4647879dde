"""The account and the windows of one process: `goodput.report()` and `goodput.window()`."""
