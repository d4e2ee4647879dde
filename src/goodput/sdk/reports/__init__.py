"""The account and the windows of one process: `goodput.report()`, `goodput.window()`, the report at exit."""
