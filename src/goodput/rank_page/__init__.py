"""The rank page: one memory-mapped file per rank process; its layout, its writer and its readers."""
