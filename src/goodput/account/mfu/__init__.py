"""Utilisation (MFU, HFU): FLOPs of a training step by formula, and peaks of accelerators."""
