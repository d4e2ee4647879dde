"""Steps that were repeated after a restart."""

from goodput.account.figures import checkpoints
from goodput.account.text import duration

STATE = "lost"
ADVICE = "Save checkpoints more often (they are cheap if asynchronous), and find what ended the run."


def advise(account) -> str:
    """Advise more checkpoints only if the interval is above the best one, since each costs time."""
    steps = sum(account.of("lost_steps"))
    restarts = len(account.restarts)
    head = f"{steps} rank-steps were lost in {restarts} restart{'s' * (restarts != 1)}"
    if not restarts:  # It failed, and nothing has started it again.
        head = f"{steps} rank-steps after its last committed checkpoint are lost"
    saving = checkpoints(account)
    best, interval = saving["best_interval_seconds"], saving["interval_seconds"]
    if best is not None and interval is not None and interval <= best:
        return (
            f"{head}. Checkpoints are frequent enough (every {duration(interval)}): find what ended the run."
        )
    each = "" if best is None else f", every {duration(best)} (estimate)"
    return f"{head}: save checkpoints more often{each} (they are cheap if asynchronous), and find what ended the run."
