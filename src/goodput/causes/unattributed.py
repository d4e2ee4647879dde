"""Time of an attempt outside any phase."""

from goodput.account.sampled_stacks import where

STATE = "unattributed"
ADVICE = (
    "It is not known what this time is: making batches without a DataLoader, logging, waiting for a queue, or other work "
    "between the calls that train. Name it: for a loop over a plain iterator or generator, write `for batch in "
    "goodput.loader(iterable)`; wrap other work between phases in goodput.phase(name, state=...)."
)


def advise(account) -> str:
    """Say where the main thread was, if it was sampled."""
    return f"{ADVICE}{where(account)}"
