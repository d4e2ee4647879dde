# The compiled classes have the interfaces of their Python twins: step_clock, and PythonSlot of frameworks.torch.forward.
from typing import Any

from goodput.sdk.recorder.step_clock import Clock as Clock
from goodput.sdk.recorder.step_clock import Phase as Phase
from goodput.sdk.recorder.step_clock import bin_of_ns as bin_of_ns

Hook: Any
Slot: Any

def set_constants(**constants: int) -> None: ...
