"""What a machine and a data loader can do, measured outside of any training: `goodput probe`."""

PARTS = ("gemm", "memory", "copies", "storage", "allreduce")
