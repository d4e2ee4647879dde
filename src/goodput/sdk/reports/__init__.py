"""What a process says of itself: `goodput.report()` and `goodput.window()`."""
