"""Waiting for the scheduler."""

STATE = "queue"
ADVICE = (
    "Request a job size that fits the free nodes, or let the scheduler keep the allocation across restarts."
)
