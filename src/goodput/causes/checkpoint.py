"""Saving checkpoints while the GPUs wait."""

from goodput.account.figures import checkpoints
from goodput.account.text import duration

STATE = "checkpoint"
# The cost of saving is flat around the best interval: within this factor it is at most 6 % above the least.
NEAR_RATIO_MAX = 1.4
_HEAD = "Save asynchronously (copy to host memory, write in the background)"
GENERAL = f"{_HEAD} or less often; the best interval is sqrt(2 x save time x mean time between failures)."


def advise(account) -> str:
    """Names the best interval where failures were seen; the formula is that of figures.checkpoints."""
    saving = checkpoints(account)
    best, interval = saving["best_interval_seconds"], saving["interval_seconds"]
    if best is None:
        return GENERAL
    if not interval:  # Unknown, or all of them were committed in one instant.
        return f"{_HEAD}; the best interval for the failures seen is {duration(best)} (estimate)."
    now = f"now one is saved each {duration(interval)}"
    if max(best / interval, interval / best) <= NEAR_RATIO_MAX:
        return f"{_HEAD}; {now}, which is near the best interval for the failures seen, {duration(best)} (estimate)."
    often = "less" if best > interval else "more"
    return f"{_HEAD}; {now}, for the failures seen {often} often is better, each {duration(best)} (estimate)."
