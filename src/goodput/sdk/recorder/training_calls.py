"""The last training call of a step, as `TrainingState.after` has it, and the reference that stands for no object."""

# It decides where the time until the next call belongs: after a forward pass it is the loss, after a backward pass the
# clipping of gradients.
NOTHING, FORWARD, BACKWARD = 0, 1, 2


def dead_reference() -> None:
    """Stands for a weak reference to an object that is gone."""
