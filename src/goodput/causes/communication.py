"""Collectives that every rank waited for, even the last to arrive."""

STATE = "communication"


def advise(account) -> str:
    return (
        "Overlap gradient reduction with the backward pass (larger or earlier buckets), reduce in "
        "bf16, or give each GPU more work per step."
    )
