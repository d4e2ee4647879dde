# The compiled classes have the interfaces of those in Python.
from collections.abc import Callable
from typing import Any

from goodput.sdk.recorder.plain import Clock as Clock
from goodput.sdk.recorder.plain import Costs as Costs
from goodput.sdk.recorder.plain import Gaps as Gaps
from goodput.sdk.recorder.plain import Phase as Phase
from goodput.sdk.recorder.plain_training import FetchState as FetchState
from goodput.sdk.recorder.plain_training import Slot as Slot
from goodput.sdk.recorder.plain_training import TrainingState as TrainingState
from goodput.sdk.recorder.recorder import Recorder

Hook: Any
Call: Any

class Records:
    """Calls of process groups in the open page, and what waits for them; see collectives.CollectiveRecords."""

    prepare: Callable[[], None]  # of CollectiveRecords, as is register
    register: Callable[[Any], int]
    recorder: Recorder
    slots: dict  # by id and name of a process group
    dtypes: dict  # the code of each dtype
    ready: int  # 1 if the page has room for records, -1 if not, 0 if that is unknown
    written: int  # records in this page
    last: int  # the last record of the step thread
    attributed: int  # ns of communication that are attributed
    reducing: int  # whether a reducer calls
    coalesced: int  # the first record of coalesced calls, -1 before it, 0 outside

    def __init__(self, recorder: Recorder, slots: dict, dtypes: dict) -> None: ...
    def page_changed(self) -> None:
        """Begin anew in another page."""
    def forget(self) -> None:
        """Look process groups up again: one is gone."""
    def settle(self) -> None:
        """Attribute all communication so far to the last record of the step thread."""
    def leave_reduced(self) -> None:
        """A backward pass has ended, and with it the wait for what its reducers issued."""
    def issued_by(self, work: Any, first: int, /) -> None:
        """Waiting for this object waits for the coalesced records from `first` on."""
    def awaits(self, future: Any, /) -> bool:
        """Whether waiting for this future waits for a Work."""
    def passed_on(self, awaited: Any, future: Any, flags: int, /) -> None:
        """`future` is one of a Work, or with the flag of a future: it waits for the same records, if any."""
    def completed(self, awaited: Any, flags: int, /) -> None:
        """A Work, or with the flag a future, was found to be complete, without a wait."""

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
