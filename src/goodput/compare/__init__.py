"""Comparison of runs: by how much steps became faster or slower, in which states, and how sure that is."""
