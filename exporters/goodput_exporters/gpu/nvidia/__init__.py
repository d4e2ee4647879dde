"""What the NVIDIA drivers share: XID errors and the table of DCGM fields; no driver itself."""
