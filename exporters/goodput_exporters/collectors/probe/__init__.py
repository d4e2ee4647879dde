"""What this node can do, by its last `goodput probe`."""
