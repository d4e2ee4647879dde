"""RDMA devices: InfiniBand, RoCE, EFA and Omni-Path."""
