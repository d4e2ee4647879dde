"""Time of an attempt outside any phase."""

from goodput.account.sampled_stacks import where

STATE = "unattributed"
ADVICE = (
    "This time has no name yet: making batches without a DataLoader, logging, waiting for a queue, or other work. Put "
    "goodput.loader(iterable) around what makes the batches, and goodput.phase(name, state=...) around other work."
)


def advise(account) -> str:
    """Say where the main thread was, if it was sampled."""
    return f"{ADVICE}{where(account)}"
