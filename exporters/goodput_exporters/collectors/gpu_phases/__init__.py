"""GPU activity and energy by phase of the rank that uses it."""
