"""The patches of PyTorch, one file per part of it."""
