"""Waiting for the scheduler."""

STATE = "queue"


def advise(account) -> str:
    return (
        "Ask for a shape that fits the free nodes, or let the scheduler keep the allocation across restarts."
    )
