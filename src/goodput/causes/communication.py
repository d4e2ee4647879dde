"""Time in collectives, and in sends and receives, that even the last rank to arrive waited for."""

from goodput.account.document import slow_issue
from goodput.account.figures import pipeline
from goodput.account.text import slow_issue_text

STATE = "communication"
ADVICE = (
    "Overlap gradient reduction with the backward pass (larger or earlier buckets), reduce in bf16, or give "
    "each GPU more work per step."
)
_PIPELINE = "Overlap the sends and receives between stages, and gradient reduction, with compute."

_SLOW_ISSUE = (
    "check whether that rank's threads get a core, its network interface, and what its communication hook or library does "
    "in the call."
)


def advise(account) -> str:
    slow, general = slow_issue(account), _general(pipeline(account))
    return (
        general if slow is None else f"All ranks wait while {slow_issue_text(slow)}: {_SLOW_ISSUE} {general}"
    )


def _general(found) -> str:
    if found is None:
        return ADVICE
    if found["microbatches"] is None:
        return f"{_PIPELINE} A part of it is the pipeline's bubble: pass microbatches= to goodput.start to have it separated."
    return f"{_PIPELINE} It is more than this schedule's bubble: microbatches of uneven work wait here too."
