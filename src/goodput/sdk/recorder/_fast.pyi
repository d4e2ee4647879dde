# The compiled classes have the interfaces of their Python twins: step_clock, and PythonSlot of frameworks.torch.forward.
from typing import Any

from goodput.histograms.histogram import bin_of_ns as bin_of_ns
from goodput.sdk.recorder.step_clock import Clock as Clock
from goodput.sdk.recorder.step_clock import Phase as Phase

Hook: Any
Slot: Any

def set_constants(**constants: int) -> None: ...
