"""PyTorch: one file per part of it that is patched."""
