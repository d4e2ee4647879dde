"""Processors, memory, pressure, disks and TCP."""
