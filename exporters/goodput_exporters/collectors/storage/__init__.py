"""File systems: capacity, availability and client counters."""
