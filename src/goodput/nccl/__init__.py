"""A profiler plugin of NCCL (in C, loaded by NCCL itself) that records its calls beside the rank page, and where it is."""
