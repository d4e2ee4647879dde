"""Pushes in: merged into the store of runs, with their hangs and health events."""
