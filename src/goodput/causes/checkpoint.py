"""Saving checkpoints while the GPUs wait."""

STATE = "checkpoint"


def advise(account) -> str:
    return (
        "Save asynchronously (copy to host memory, write in the background) or less often; the best interval is "
        "sqrt(2 x save time x mean time between failures)."
    )
