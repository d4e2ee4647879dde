"""Steps that had to be done again."""

from goodput.account.figures import checkpoints
from goodput.account.text import duration

STATE = "lost"
GENERAL = "Save checkpoints more often (they are cheap if asynchronous), and find what ended the run."


def advise(account) -> str:
    """More checkpoints lose less, but each costs time: said only where the interval is longer than the best one."""
    steps = sum(rank.lost_steps for rank in account.ranks)
    restarts = len(account.restarts)
    head = f"{steps} rank-steps were lost in {restarts} restart{'s' * (restarts != 1)}"
    saving = checkpoints(account)
    best, interval = saving["best_interval_seconds"], saving["interval_seconds"]
    if best is not None and interval is not None and interval <= best:
        return (
            f"{head}. Checkpoints are frequent enough (each {duration(interval)}): find what ended the run."
        )
    each = "" if best is None else f", each {duration(best)} (estimate)"
    return f"{head}: save checkpoints more often{each} (they are cheap if asynchronous), and find what ended the run."
