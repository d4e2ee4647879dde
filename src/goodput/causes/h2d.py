"""Copies to the device that steps wait for."""

from goodput.account.account import Account
from goodput.account.figures import device_copies
from goodput.account.text import on, percent

STATE = "h2d"
ADVICE = (
    "Copy while computing: pin host memory (pin_memory=True), copy with non_blocking=True, and fetch the "
    "next batch one step ahead."
)
# Copies below this share of what pinned ones reached in the probe are slow, and above it well used.
SLOW_MAX = 0.7
_SLOW = "copy few large tensors rather than many small ones, from pinned memory."
_HIDE = (
    "pinning brings no more. Hide them: copy with non_blocking=True and fetch the next batch one step ahead; or copy less, "
    "such as images as bytes that the device converts."
)


def advise(account: Account) -> str:
    """By how fast the copies of a traced step were, of what the node's can be, where both are known."""
    found = device_copies(account)
    if found is None or found["reached_ratio"] is None:
        return ADVICE
    share, what = found["reached_ratio"], f"of rank {found['rank']}{on(found['host'])}"
    text = f"The copies {what} run at {percent(share)} of what its node can do: "
    return f"{text}{_SLOW} {ADVICE}" if share < SLOW_MAX else f"{text}{_HIDE}"
