"""Histograms of durations, sums over windows of steps, and export in hdrhistogram's log format."""
