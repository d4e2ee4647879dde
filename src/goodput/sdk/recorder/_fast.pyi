# The compiled classes have the interfaces of their Python twins.
from typing import Any

from goodput.sdk.automatic.frameworks.torch.forward import PythonSlot
from goodput.sdk.automatic.gaps import PythonGaps
from goodput.sdk.automatic.training_state import PythonFetchState, PythonTrainingState
from goodput.sdk.recorder.collectives import PythonRecords
from goodput.sdk.recorder.step_clock import Clock as Clock
from goodput.sdk.recorder.step_clock import Costs as Costs
from goodput.sdk.recorder.step_clock import Phase as Phase

Hook: Any
Slot = PythonSlot
Gaps = PythonGaps
FetchState = PythonFetchState
TrainingState = PythonTrainingState
Records = PythonRecords
Call: Any

def set_constants(**constants: int) -> None: ...
def set_collective_constants(**constants: int) -> None: ...
def fail_by_status(
    fd: int,
    size: int,
    word: int,
    finished: int,
    failed: int,
    events: int,
    at: int,
    event: bytes,
    status: int,
    next_step: int,
    /,
) -> bool: ...
def wait_at_exit(child: int, fd: int, /) -> bool: ...
