"""Owners of ranks and GPU processes: user, container, pod, Slurm job and step."""
