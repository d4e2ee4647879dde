"""What the ranks of a run did in the last minutes."""
