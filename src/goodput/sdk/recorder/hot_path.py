"""What runs at every phase, step and training call: compiled where the extension was built, else the same in Python.

`extension` has what there is compiled alone: hooks in front of the Python ones, records of collectives, and the status
of an exit. It is None where the extension was not built, for which Python's headers are needed.
"""

from __future__ import annotations

try:
    from goodput.sdk.recorder import _fast as extension
    from goodput.sdk.recorder._fast import Clock, Phase, Slot, TrainingState
except ImportError:
    from goodput.sdk.recorder.plain import Clock, Phase
    from goodput.sdk.recorder.plain_training import Slot, TrainingState

    extension = None

__all__ = ["Clock", "Phase", "Slot", "TrainingState", "extension"]
