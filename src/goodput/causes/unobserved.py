"""Expected ranks without any report."""

STATE = "unobserved"
ADVICE = "Run goodput node on every node of the run, and start the SDK early in every rank."
