"""Time in collectives, and in sends and receives, that even the last rank to arrive waited for."""

from goodput.account.figures import pipeline

STATE = "communication"
ADVICE = (
    "Overlap gradient reduction with the backward pass (larger or earlier buckets), reduce in bf16, or give "
    "each GPU more work per step."
)
_PIPELINE = "Overlap the sends and receives between stages, and gradient reduction, with compute."


def advise(account) -> str:
    found = pipeline(account)
    if found is None:
        return ADVICE
    if found["microbatches"] is None:
        return f"{_PIPELINE} A part of it is the pipeline's bubble: pass microbatches= to goodput.start to have it separated."
    return f"{_PIPELINE} It is more than this schedule's bubble: microbatches of uneven work wait here too."
