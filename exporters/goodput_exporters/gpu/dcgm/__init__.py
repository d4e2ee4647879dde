"""NVIDIA GPUs through DCGM's Python bindings."""
