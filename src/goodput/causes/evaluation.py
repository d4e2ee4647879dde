"""Evaluation inside the run."""

STATE = "evaluation"


def advise(account) -> str:
    return (
        "Evaluate less often or on fewer batches, or move evaluation to its own job that reads checkpoints."
    )
