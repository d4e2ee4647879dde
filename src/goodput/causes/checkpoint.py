"""Saving checkpoints while GPUs wait."""

from goodput.account.figures import checkpoints
from goodput.account.text import duration

STATE = "checkpoint"
# The cost is flat around the best interval: within this factor it is at most 6 % above the minimum.
NEAR_RATIO_MAX = 1.4
_HEAD = "Save asynchronously (copy to host memory, write in the background)"
ADVICE = f"{_HEAD} or less often. The best interval is sqrt(2 x save time x mean time between failures)."


def advise(account) -> str:
    """Give the best interval (figures.checkpoints) if failures were seen."""
    saving = checkpoints(account)
    best, interval = saving["best_interval_seconds"], saving["interval_seconds"]
    if best is None:
        return ADVICE
    if not interval:  # Unknown, or all were committed at the same time.
        return f"{_HEAD}. The best interval for the failures seen is {duration(best)} (estimate)."
    if max(best / interval, interval / best) <= NEAR_RATIO_MAX:
        return (
            f"{_HEAD}. The interval of {duration(interval)} is near the best for the failures seen, "
            f"{duration(best)} (estimate)."
        )
    often = "less" if best > interval else "more"
    return (
        f"{_HEAD}, and {often} often: every {duration(best)} instead of every {duration(interval)} is best for the "
        "failures seen (estimate)."
    )
