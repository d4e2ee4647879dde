"""Series that other programs leave in files."""
