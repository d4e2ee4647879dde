"""Waiting for the scheduler."""

STATE = "queue"


def advise(account) -> str:
    return "Request a job size that fits the free nodes, or let the scheduler keep the allocation across restarts."
