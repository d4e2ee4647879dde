"""What a machine and a data loader can do, measured outside of any training: `goodput probe`."""

# By part, how the names of its figures begin.
FIGURES = {
    "gemm": ("gemm_",),
    "memory": ("memory_host",),
    "copies": ("h2d_", "d2h_", "memory_device"),
    "storage": ("storage_", "small_files"),
    "allreduce": ("all_reduce_",),
}
PARTS = tuple(FIGURES)
