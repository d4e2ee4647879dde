"""NVIDIA GPUs through a dcgm-exporter's metrics page."""
