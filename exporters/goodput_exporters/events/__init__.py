"""Health events of GPUs and links."""
