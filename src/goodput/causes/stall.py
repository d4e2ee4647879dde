"""No step progress for a long time."""

STATE = "stall"
ADVICE = (
    "Find the rank that hangs: ranks in communication wait for it, the others are suspects. Set a shorter "
    "collective timeout to end such a run earlier."
)
