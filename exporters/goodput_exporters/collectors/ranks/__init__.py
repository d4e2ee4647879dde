"""Rank pages of this node."""
