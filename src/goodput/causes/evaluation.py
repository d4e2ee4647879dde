"""Evaluation inside the run."""

STATE = "evaluation"
ADVICE = "Evaluate less often or on fewer batches, or move evaluation to its own job that reads checkpoints."
