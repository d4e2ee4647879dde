"""The processes of `goodput serve`."""
