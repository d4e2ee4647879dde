"""NUMA nodes, and what is placed on each."""
