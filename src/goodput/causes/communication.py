"""Time in collectives that even the last rank to arrive waited for."""

STATE = "communication"
ADVICE = (
    "Overlap gradient reduction with the backward pass (larger or earlier buckets), reduce in bf16, or give "
    "each GPU more work per step."
)
